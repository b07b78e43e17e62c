"""S3 servers beside moto: MinIO, rclone's, and the RADOS gateway of Ceph. Tests use one of them if HEADGATE_TEST_S3 names it.

MinIO, rclone: `go install github.com/minio/minio@latest`, `github.com/rclone/rclone@latest`; they are found in PATH and in Go's own
directory of programs. rclone's server has no conditional writes: it serves sources, and no store.
RADOS gateway: `apt-get install radosgw ceph-mon ceph-osd` on Debian; one monitor and one OSD, which keeps everything in memory.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.ports import free_port
from tests.support.s3_server import ENVIRONMENT, HOST, START_DEADLINE_S, S3Server

ACCESS_KEY, SECRET_KEY = ENVIRONMENT["AWS_ACCESS_KEY_ID"], ENVIRONMENT["AWS_SECRET_ACCESS_KEY"]
GO_MODULES = {"minio": "github.com/minio/minio", "rclone": "github.com/rclone/rclone"}
CEPH_PROGRAMS = ("ceph", "ceph-authtool", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")
OSD_BYTES = 4 << 30
CEPH_CONF = """\
[global]
fsid = {fsid}
mon host = [v1:{host}:{port}]
ms bind msgr2 = false
public addr = {host}
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd crush chooseleaf type = 0
mon allow pool size one = true
run dir = {directory}
admin socket = {directory}/$name.asok
log file = {directory}/$name.log
keyring = {directory}/keyring
[mon]
mon data = {directory}/mon
[osd]
osd data = {directory}/osd
osd objectstore = memstore
memstore device bytes = {osd_bytes}
"""


class MinioServer(S3Server):
    ready_path = "/minio/health/live"

    def start(self) -> None:
        program = _of_go("minio")
        assert program is not None
        data = self.directory / "data"
        addresses = ("--address", f"{HOST}:{self.port}", "--console-address", f"{HOST}:{free_port(HOST)}")
        # A key of its own: objects may ask for encryption by the server.
        secret = f"tests:{base64.b64encode(bytes(32)).decode()}"
        keys = {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY, "MINIO_KMS_SECRET_KEY": secret}
        self.spawn([program, "server", "--quiet", *addresses, str(data)], keys)


class RcloneServer(S3Server):
    def start(self) -> None:
        program = _of_go("rclone")
        assert program is not None
        data = self.directory / "data"
        data.mkdir()
        address, keys = f"{HOST}:{self.port}", f"{ACCESS_KEY},{SECRET_KEY}"
        self.spawn([program, "serve", "s3", "--addr", address, "--auth-key", keys, "--vfs-cache-mode", "off", str(data)])


class RadosGateway(S3Server):
    def start(self) -> None:
        port, fsid = free_port(HOST), str(uuid.uuid4())
        for name in ("mon", "osd"):
            (self.directory / name).mkdir()
        conf = self.directory / "ceph.conf"
        conf.write_text(CEPH_CONF.format(fsid=fsid, host=HOST, port=port, directory=self.directory, osd_bytes=OSD_BYTES))
        monmap, keyring = str(self.directory / "monmap"), str(self.directory / "keyring")
        self._run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", f"[v1:{HOST}:{port}]", monmap)
        self._run("ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
        with_conf = ("-c", str(conf))
        self._run("ceph-mon", *with_conf, "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring)
        # In the foreground (-f), so that they end with this object.
        self.spawn(["ceph-mon", *with_conf, "-f", "-i", "a"])
        osd = str(uuid.uuid4())
        self._run("ceph", *with_conf, "osd", "new", osd)
        self._run("ceph-osd", *with_conf, "-i", "0", "--mkfs", "--osd-uuid", osd)
        self.spawn(["ceph-osd", *with_conf, "-f", "-i", "0"])
        user = ("--uid", "headgate", "--display-name", "headgate", "--access-key", ACCESS_KEY, "--secret", SECRET_KEY)
        self._run("radosgw-admin", *with_conf, "user", "create", *user)
        frontend = f"beast endpoint={HOST}:{self.port}"
        self.spawn(["radosgw", *with_conf, "-f", "-n", "client.rgw", "--rgw-frontends", frontend])

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, cwd=self.directory, capture_output=True, text=True, timeout=START_DEADLINE_S, check=False)
        assert done.returncode == 0, f"{' '.join(command)} failed. exit=`{done.returncode}`\n{done.stderr[-2000:]}{self.output()}"


SERVERS: Mapping[str, Callable[[], S3Server]] = {"minio": MinioServer, "radosgw": RadosGateway, "rclone": RcloneServer}


def missing(name: str) -> str | None:
    """The reason why a server cannot run here; None: it can."""
    if name in GO_MODULES:
        return None if _of_go(name) else f"{name} is not installed: go install {GO_MODULES[name]}@latest"
    if absent := [program for program in CEPH_PROGRAMS if shutil.which(program) is None]:
        return f"{absent[0]} is not installed: apt-get install radosgw ceph-mon ceph-osd"
    return None


def _of_go(program: str) -> str | None:
    places = [os.environ.get("PATH", ""), os.environ.get("GOBIN", ""), str(Path.home() / "go" / "bin")]
    return shutil.which(program, path=os.pathsep.join(place for place in places if place))
