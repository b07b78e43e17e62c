"""The files of `deploy/` against the product: ports, paths, users, settings and versions.

Rendering needs helm, and so does the comparison of `deploy/kubernetes.yaml` with the chart; everything else is read as text. A
mismatch means that an image, a chart or a service starts something that this version does not have.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import headgate
from headgate.broker.runtime.config import Settings
from tests.support.broker_process import ROOT

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "headgate"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


def document(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_one_version() -> None:
    chart = document(CHART / "Chart.yaml")
    assert (chart["version"], chart["appVersion"]) == (headgate.__version__, headgate.__version__)
    assert re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)[0] == headgate.__version__


def test_the_image_is_not_run_by_root_and_answers_for_its_health() -> None:
    last = DOCKERFILE.rsplit("\nFROM ", 1)[1]
    users = re.findall(r"^USER (.+)$", last, re.M)
    assert users == ["10001"], "the last word about the user is a number, not root"
    assert "10001" in (CHART / "templates" / "_helpers.tpl").read_text()
    settings = Settings.load([], {})
    ports = [str(port) for port in (settings.kafka_port, settings.grpc_port, settings.http_port)]
    assert re.findall(r"^EXPOSE (.+)$", last, re.M) == [" ".join(ports)]
    (check,) = re.findall(r"HEALTHCHECK.*\\\n\s+CMD (\[.*\])$", last, re.M)
    assert f"http://127.0.0.1:{settings.http_port}/readyz" in json.loads(check)[2]
    compile(json.loads(check)[2], "healthcheck", "exec")


def test_the_images_command_is_a_broker_of_this_version() -> None:
    given = json.loads(re.findall(r"^CMD (\[.*\])$", DOCKERFILE, re.M)[-1])
    environment = dict(re.findall(r"(HEADGATE_\w+)=(\S+)", re.findall(r"^ENV (.+)$", DOCKERFILE, re.M)[0]))
    settings = Settings.load(given[1:], environment)
    assert (given[0], settings.host, settings.store, settings.store_create) == ("broker", "0.0.0.0", "/data", True)


def test_compose_publishes_each_port_of_three_brokers() -> None:
    services = document(DEPLOY / "compose.yaml")["services"]
    published = {int(one.split(":")[2]) for one in services["brokers"]["ports"]}
    assert {port + 10 * broker for port in (9092, 9095) for broker in range(3)} <= published
    for name, service in services.items():
        assert all(other in services for other in service.get("depends_on", {})), name
    compile(services["bucket"]["command"][0], "bucket", "exec")


def test_the_service_of_systemd_starts_a_broker_and_lets_it_drain() -> None:
    lines = dict(line.split("=", 1) for line in (DEPLOY / "headgate.service").read_text().splitlines() if re.match(r"\w+=", line))
    assert lines["ExecStart"].endswith("headgate broker")
    assert (lines["KillSignal"], lines["RestartPreventExitStatus"]) == ("SIGTERM", "2")
    assert int(lines["TimeoutStopSec"]) >= 60 and lines["DynamicUser"] == "yes"


def test_an_executor_starts_spark_as_spark_asks(tmp_path: Path) -> None:
    """With a stand-in for Java that prints its arguments."""
    (tmp_path / "java").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "python").write_text(f'#!/bin/sh\ncase "$2" in *java_home*) echo {tmp_path}/java ;; *) echo /opt/pyspark ;; esac\n')
    for name in ("java", "python"):
        (tmp_path / name).chmod(0o755)
    given = {
        "SPARK_JAVA_OPT_0": "-Da=b c", "SPARK_JAVA_OPT_1": "-Dd=e", "SPARK_EXECUTOR_MEMORY": "4g", "SPARK_DRIVER_URL": "spark://driver",
        "SPARK_EXECUTOR_ID": "1", "SPARK_EXECUTOR_CORES": "2", "SPARK_APPLICATION_ID": "app", "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
        "SPARK_RESOURCE_PROFILE_ID": "0", "SPARK_EXECUTOR_POD_NAME": "pod-1", "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    done = subprocess.run([DEPLOY / "spark-executor.sh", "executor"], env=given, capture_output=True, text=True, check=True)
    said = done.stdout.splitlines()
    assert said[:4] == ["-Da=b c", "-Dd=e", "-Xms4g", "-Xmx4g"]
    assert said[6] == "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    assert dict(zip(said[7::2], said[8::2], strict=True)) == {
        "--driver-url": "spark://driver", "--executor-id": "1", "--cores": "2", "--app-id": "app", "--hostname": "10.0.0.7",
        "--resourceProfileId": "0", "--podName": "pod-1",
    }  # fmt: skip


def test_the_manifests_are_the_rendered_chart() -> None:
    places = os.pathsep.join([os.environ.get("PATH", ""), os.environ.get("GOBIN", ""), str(Path.home() / "go" / "bin")])
    if shutil.which("helm", path=places) is None:
        pytest.skip("helm is not installed: go install helm.sh/helm/v3/cmd/helm@latest")
    rendered = subprocess.run(
        [DEPLOY / "render"], env={**os.environ, "PATH": places}, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert rendered == (DEPLOY / "kubernetes.yaml").read_text(), "run deploy/render > deploy/kubernetes.yaml"
