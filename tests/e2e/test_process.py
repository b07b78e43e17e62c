"""The broker and its supervisor as processes: their start, the reasons why they cannot start, and their end.

Runs `headgate broker` and `headgate up` as a user or a fleet does: taken ports, impossible stores, signals, a second broker on
the same store, a supervisor that is killed. Compared: exit codes, stdout and stderr. A mismatch means that an operator sees a
traceback, a wrong exit code or nothing at all, or that a process stays behind.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from prometheus_client.parser import text_string_to_metric_families

from headgate.broker.cli.up import KEPT_MS_MAX
from tests.conftest import BrokerFactory
from tests.support import commands, forks
from tests.support.broker_process import FORKED, HOST, MAIN, ROOT, BrokerProcess
from tests.support.children import children
from tests.support.ports import free_port
from tests.support.s3_server import S3Server, s3_server
from tests.support.waiting import until

__all__ = ["s3_server"]

START_S = 90.0
END_S = 30.0
Spawn = Callable[..., "Running"]


class Running:
    """A running `headgate` command; stdout and stderr are kept apart, in files. `forked`: it is a broker that is forked, not
    started, for what happens after Python has begun."""

    def __init__(
        self, directory: Path, arguments: tuple[str, ...], environment: dict[str, str], stdin: int, *, forked: bool
    ) -> None:
        self.out_path, self.err_path = directory / "out", directory / "err"
        self.ports = [free_port() for _ in range(3)]
        kafka, grpc, http_port = map(str, self.ports)
        ports = ("--kafka-port", kafka, "--grpc-port", grpc, "--http-port", http_port)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
        with self.out_path.open("wb") as out, self.err_path.open("wb") as err:
            command = [*MAIN, arguments[0], *ports, *arguments[1:]]
            environment = inherited | {"HEADGATE_STORE_CREATE": "true"} | environment
            self.process: subprocess.Popen[bytes] | forks.Forked
            if forked:
                with open(os.devnull, "rb") as nothing:
                    streams = (nothing.fileno(), out.fileno(), err.fileno())
                    self.process = forks.start(FORKED, command, environment, streams, own_session=True)
                return
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdin=stdin,
                stdout=out,
                stderr=err,
                cwd=ROOT,
                start_new_session=True,
                env=environment,
            )

    @property
    def out(self) -> str:
        return self.out_path.read_text()

    @property
    def err(self) -> str:
        return self.err_path.read_text()

    def wait_for(self, pattern: str, *, in_errors: bool = False, timeout_s: float = START_S) -> re.Match[str]:
        """Wait until the pattern is in its output. Fails if the process ends first."""

        def found() -> re.Match[str] | None:
            match = re.search(pattern, self.err if in_errors else self.out)
            assert match or self.process.poll() is None, f"exit_code=`{self.process.returncode}`\n{self.out}\n{self.err}"
            return match

        match = until(found, lambda: f"{pattern}\n{self.out}\n{self.err}", timeout_s)
        assert match is not None
        return match

    def wait(self, timeout_s: float = START_S) -> int:
        return self.process.wait(timeout_s)


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    """Start `headgate` commands on free ports; a command that still runs at the end is killed."""
    made: list[Running] = []

    def start(
        *arguments: str, environment: dict[str, str] | None = None, stdin: int = subprocess.DEVNULL, forked: bool = False
    ) -> Running:
        directory = tmp_path / f"process-{len(made)}"
        directory.mkdir()
        made.append(Running(directory, arguments, environment or {}, stdin, forked=forked))
        return made[-1]

    yield start
    for one in made:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
        if isinstance(one.process, subprocess.Popen) and one.process.stdin is not None:
            one.process.stdin.close()
        assert "Traceback" not in one.err, one.err


@pytest.fixture
def fork(spawn: Spawn) -> Spawn:
    """The same, of brokers that are forked."""
    return partial(spawn, forked=True)


def one_error_line(running: Running) -> str:
    """The only line of stderr that is not a log line."""
    lines = [line for line in running.err.splitlines() if not line.startswith("{")]
    assert len(lines) == 1, running.err
    return lines[0]


# -- it cannot start


@pytest.mark.parametrize("which", [0, 1, 2], ids=["kafka", "grpc", "http"])
def test_a_taken_port_is_said_before_the_store_is_touched(tmp_path: Path, which: int) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        ports = [free_port() for _ in range(3)]
        ports[which] = port
        names = ("kafka_port", "grpc_port", "http_port")
        environment = {f"HEADGATE_{name.upper()}": str(number) for name, number in zip(names, ports, strict=True)}
        done = commands.run(["broker", "--store", str(tmp_path / "store")], os.environ | environment, timeout_s=START_S)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "port is taken" in line and f"{HOST}:{port}" in line and f"--{names[which].replace('_', '-')}" in line
    assert not (tmp_path / "store").exists()


def test_a_host_that_is_not_ours(spawn: Spawn, tmp_path: Path) -> None:
    running = spawn("broker", "--store", str(tmp_path / "store"), "--host", "192.0.2.1")
    assert running.wait() == 1
    assert "host is not an address of this machine" in one_error_line(running) and "192.0.2.1" in running.err


@pytest.mark.parametrize("limit", [48, 64])
def test_too_few_descriptors(spawn: Spawn, tmp_path: Path, limit: int) -> None:
    """A broker that would refuse every client says so, and does not start."""
    command = ("-c", f'ulimit -n {limit} && exec "$0" "$@"', sys.executable, "-m", "headgate.broker.cli.main", "broker")
    done = subprocess.run(
        ["/bin/sh", *command, "--store", str(tmp_path / "store"), "--kafka-port", "0", "--grpc-port", "0", "--http-port", "0"],
        capture_output=True, text=True, cwd=ROOT, timeout=START_S,
    )  # fmt: skip
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"too few file descriptors for a broker that serves: raise `ulimit -Hn`. limit=`{limit}` least=`256`" in line
    assert not (tmp_path / "store").exists()


def test_a_wrong_setting_is_a_usage_error(fork: Spawn) -> None:
    running = fork("broker", "--wal-fsync", "sometimes")
    assert running.wait() == 2
    assert "expected one of always, interval, never" in one_error_line(running)


@pytest.mark.parametrize("command", ["up", "broker"])
def test_what_names_no_store_is_a_usage_error(spawn: Spawn, command: str) -> None:
    running = spawn(command, "--store", "ftp://x")
    assert running.wait() == 2
    assert "only directories, file:///path and s3://bucket/prefix are known" in one_error_line(running)


def test_a_store_below_a_file(fork: Spawn, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    running = fork("broker", "--store", str(tmp_path / "file"))
    assert running.wait() == 1
    assert str(tmp_path / "file") in one_error_line(running)


def test_a_read_only_store(fork: Spawn, tmp_path: Path) -> None:
    directory = tmp_path / "store"
    directory.mkdir(mode=0o555)
    if os.access(directory, os.W_OK):
        # File permissions do not stop root; but not even root can make a directory in /sys.
        directory = Path("/sys/headgate-store")
    running = fork("broker", "--store", str(directory))
    assert running.wait() == 1
    assert str(directory) in one_error_line(running)


def test_no_such_bucket(fork: Spawn, s3_server: S3Server) -> None:
    running = fork("broker", "--store", s3_server.url("no-such-bucket", "prefix"), environment=s3_server.environment)
    assert running.wait() == 1
    assert "no-such-bucket" in one_error_line(running)


def test_another_clusters_store(make_broker: BrokerFactory, fork: Spawn) -> None:
    broker = make_broker(arguments=("--cluster-name", "red"))
    broker.start()
    assert broker.terminate() == 0
    running = fork("broker", "--store", broker.store, "--cluster-name", "blue")
    assert running.wait() == 1
    line = one_error_line(running)
    assert "another cluster" in line and "red" in line and "blue" in line


@pytest.mark.parametrize("is_there", [True, False], ids=["empty", "missing"])
def test_a_store_that_must_be_there_is_not_made(fork: Spawn, tmp_path: Path, is_there: bool) -> None:
    store = tmp_path / "mount" / "store"
    if is_there:
        store.mkdir(parents=True)
    running = fork("broker", "--store", str(store), "--cluster-id", "red")
    assert running.wait() == 1
    assert f"the store is not there, and is not made anew: is its disk mounted? path=`{store}`" in one_error_line(running)
    assert list(tmp_path.glob("mount/**/*")) == ([store] if is_there else [])


@pytest.mark.parametrize("place", ["empty", "missing", "s3"])
def test_no_cluster_is_made_unasked(fork: Spawn, tmp_path: Path, s3_server: S3Server, place: str) -> None:
    """A broker with a store that is not mounted, or with a wrong URL, ends and says how to make a new cluster; then `init` makes
    it."""
    store = tmp_path / "mount" / "store"
    if place == "empty":
        store.mkdir(parents=True)
    url = s3_server.url(s3_server.bucket(), "nowhere") if place == "s3" else str(store)
    environment = {**s3_server.environment, "HEADGATE_STORE_CREATE": "false"}
    running = fork("broker", "--store", url, environment=environment)
    assert running.wait() == 2
    line = one_error_line(running)
    assert "is not made anew" in line and "headgate init" in line and "--store-create" in line
    assert list(tmp_path.glob("mount/**/*")) == ([store] if place == "empty" else [])
    ids = set()
    for _ in range(2):
        made = commands.run(["init", "--store", url], os.environ | environment, timeout_s=START_S)
        assert made.returncode == 0, made.stderr
        ids.add(made.stdout.strip())
    (cluster_id,) = ids
    running = fork("broker", "--store", url, environment=environment)
    assert running.wait_for(r" cluster=(\S+)\n").group(1) == cluster_id


# -- it runs and ends


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_flushes_and_seals(spawn: Spawn, tmp_path: Path, number: signal.Signals) -> None:
    store = str(tmp_path / "store")
    first = spawn("broker", "--store", store)
    line = first.wait_for(r"headgate broker 1 serves kafka=\S+ grpc=\S+ http=\S+ store=\S+ cluster=\S+\n").group()
    kafka, grpc, http_port = first.ports
    assert f"kafka={HOST}:{kafka} grpc={HOST}:{grpc} http={HOST}:{http_port} store={store}" in line
    assert produce(kafka, "sealed", 100) == 100
    first.process.send_signal(number)
    assert first.wait() == 0
    assert first.out == line, "exactly one line is printed"
    second = spawn("broker", "--store", store)
    opened = json.loads(second.wait_for(r"\{.*engine_open.*\}", in_errors=True).group())
    assert opened["recovered_records"] == 0, "a sealed log leaves nothing to recover"
    second.wait_for("serves")
    assert consume(second.ports[0], "sealed") == list(range(100))


def test_a_second_signal_ends_it_at_once(spawn: Spawn, tmp_path: Path) -> None:
    running = spawn("broker", "--store", str(tmp_path / "store"))
    running.wait_for("serves")
    running.process.send_signal(signal.SIGTERM)
    running.process.send_signal(signal.SIGTERM)
    # Either it had ended cleanly before the second signal came, or the second signal ended it.
    assert running.wait() in (0, 128 + signal.SIGTERM)


def test_a_second_broker_with_the_same_id_is_refused(fork: Spawn, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    first = fork("broker", "--store", store)
    first.wait_for("serves")
    assert produce(first.ports[0], "mine", 10) == 10
    second = fork("broker", "--store", store)
    assert second.wait() == 2
    assert "--broker-id" in one_error_line(second)
    assert produce(first.ports[0], "mine", 10) == 10


@pytest.mark.parametrize("topic_exists", [True, False], ids=["record", "topic"])
def test_a_store_that_vanishes_ends_the_broker_with_the_reason(fork: Spawn, tmp_path: Path, topic_exists: bool) -> None:
    store = tmp_path / "store"
    running = fork("broker", "--store", str(store))
    running.wait_for("serves")
    if topic_exists:
        assert produce(running.ports[0], "gone", 1) == 1
    # The broker creates files while its directory is deleted file by file. After the rename, only calls under way still create
    # files.
    renamed = store.rename(tmp_path / "renamed")
    while renamed.exists():
        shutil.rmtree(renamed, ignore_errors=True)
    assert produce(running.ports[0], "gone", 1, timeout_ms=3000) == 0
    assert running.wait() == 1
    assert re.search("vanished|deleted under the running broker", one_error_line(running))


def test_a_supervised_broker_ends_with_its_standard_input(spawn: Spawn, tmp_path: Path) -> None:
    running = spawn("broker", "--store", str(tmp_path / "store"), environment={"HEADGATE_SUPERVISED": "1"}, stdin=subprocess.PIPE)
    running.wait_for("serves")
    assert isinstance(running.process, subprocess.Popen) and running.process.stdin is not None
    running.process.stdin.close()
    assert running.wait() == 0


def test_arrow_is_there_when_a_gate_is_open_and_not_before(spawn: Spawn, tmp_path: Path) -> None:
    """Its import delays acks, and more so beside the processes that begin when files and readers come."""
    running = spawn("broker", "--store", str(tmp_path / "store"))
    running.wait_for(" serves ")
    environment = os.environ | {"HEADGATE_CLUSTER": f"{HOST}:{running.ports[1]}"}

    def has_arrow() -> bool:
        return "libarrow" in Path(f"/proc/{running.process.pid}/maps").read_text(encoding="utf-8")

    assert commands.run(["topic", "create", "t", "--partitions", "1"], environment).returncode == 0
    assert not has_arrow()
    assert commands.run(["gate", "open", "t", "first", "--each", "500"], environment).returncode == 0
    until(has_arrow)


def test_health_and_metrics(make_broker: BrokerFactory) -> None:
    broker = make_broker()
    broker.start()
    assert produce(broker.kafka_port, "measured", 50) == 50
    assert get(broker, "/healthz") == (200, "alive\n")
    assert get(broker, "/readyz") == (200, "ready\n")
    assert get(broker, "/nope")[0] == 404
    status, page = get(broker, "/")
    assert status == 200 and broker.bootstrap in page and "/metrics" in page
    status, text = get(broker, "/metrics")
    assert status == 200
    families = {family.name: family for family in text_string_to_metric_families(text)}
    samples = {(sample.name, *sample.labels.values()): sample.value for family in families.values() for sample in family.samples}
    assert samples["headgate_topic_in_records_total", "measured"] == 50
    assert samples["headgate_topic_in_bytes_total", "measured"] > 50
    assert samples["headgate_broker_ready_bool",] == 1
    assert samples["headgate_wal_appended_batches_total",] == samples["headgate_wal_durable_batches_total",] > 0
    assert {"process_resident_memory_bytes", "headgate_store_requests", "headgate_loop_lag_seconds"} <= families.keys()
    assert all(family.documentation for family in families.values())


def test_the_kafka_path_imports_nothing_heavy() -> None:
    code = (
        "import sys, headgate.broker.server.main, headgate.broker.server.process\n"
        "import headgate.broker.engine.engine, headgate.broker.server.kafka.apis\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, timeout=60)
    heavy = {
        "grpc",
        "google",
        "boto3",
        "botocore",
        "starlette",
        "uvicorn",
        "prometheus_client",
        "rich",
        "typer",
        "pydantic",
        "numpy",
    }
    assert heavy & set(loaded.stdout.split()) == set()


def test_the_health_port_does_not_delay_the_engine(tmp_path: Path) -> None:
    """If importing the engine's modules takes seconds, as on a starved machine, the health port's modules are imported after
    them."""
    ports = [free_port() for _ in range(3)]
    code = (
        "import sys, time\n"
        "from headgate.broker.cli.main import main\n"
        "from headgate.broker.server import process\n"
        "from headgate.broker.server.kafka.listener import KafkaServer\n"
        "class Late:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'headgate.broker.engine.engine':\n"
        "            time.sleep(1)\n"
        "            process.HTTP_WAIT_S = 3600\n"
        "process.HTTP_WAIT_S = 0.05\n"
        "sys.meta_path.insert(0, Late())\n"
        "serve = KafkaServer.serve\n"
        "def look(self, *given):\n"
        "    print('starlette' in sys.modules, flush=True)\n"
        "    serve(self, *given)\n"
        "KafkaServer.serve = look\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    doors = [f"--{door}-port={port}" for door, port in zip(("kafka", "grpc", "http"), ports, strict=True)]
    command = [sys.executable, "-c", code, "broker", *doors, "--store", str(tmp_path / "store"), "--store-create", "true"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"False\n", "the engine waited for the health port"
            assert b"serves" in process.stdout.readline()
        finally:
            process.kill()


# -- headgate up


def test_up_serves_restarts_and_ends(spawn: Spawn, tmp_path: Path) -> None:
    """While a broker starts again, clients wait in the backlog: a refused client retries after growing pauses."""
    running = spawn("up", "--store", str(tmp_path / "store"))
    running.wait_for(r"headgate serves kafka=\S+ grpc=\S+ http=\S+ store=\S+")
    assert produce(running.ports[0], "kept", 10) == 10
    broker = only_child(running.process.pid)
    os.kill(broker, signal.SIGKILL)
    while "serves again" not in running.err:
        assert knock(running.ports[0]), "refused while the broker starts again"
        assert running.process.poll() is None
        time.sleep(0.01)
    assert "killed by SIGKILL; it starts again" in running.err
    assert consume(running.ports[0], "kept") == list(range(10))
    broker = only_child(running.process.pid)
    running.process.send_signal(signal.SIGTERM)
    assert running.wait() == 0
    assert not alive(broker) and not knock(running.ports[0])
    assert running.out.count("\n") == 1


def test_up_makes_the_first_administrator_from_the_environment(spawn: Spawn, tmp_path: Path) -> None:
    login = ("--kafka-protocol", "sasl_plaintext", "--authorization", "acl")
    running = spawn("up", "--store", str(tmp_path / "store"), *login, environment={"HEADGATE_ADMIN_PASSWORD": "right"})
    running.wait_for(r"headgate serves kafka=\S+ grpc=\S+ http=\S+ store=\S+")
    user = {"sasl.username": "admin", "sasl.password": "right", "sasl.mechanism": "SCRAM-SHA-512"}
    address = {"bootstrap.servers": f"127.0.0.1:{running.ports[0]}", "security.protocol": "sasl_plaintext"}
    assert AdminClient({**address, **user}).list_topics(timeout=60).brokers
    running.process.send_signal(signal.SIGTERM)
    assert running.wait() == 0


def test_up_waits_for_a_store_that_vanished(spawn: Spawn, tmp_path: Path) -> None:
    # A name with spaces: the supervisor passes the cluster name from the brokers back to them.
    store = tmp_path / "store"
    running = spawn("up", "--store", str(store), "--brokers", "2", "--cluster-name", "the red one")
    running.wait_for("headgate serves")
    assert produce(running.ports[0], "kept", 10) == 10
    store.rename(tmp_path / "away")
    for broker in (1, 2):
        running.wait_for(f"broker {broker} ended: the store is not there.*it starts again in", in_errors=True, timeout_s=60)
    assert not store.exists()
    # Put another disk in its place, which belongs to another cluster.
    other = spawn("broker", "--store", str(store))
    other.wait_for("serves")
    other.process.terminate()
    assert other.wait() == 0
    running.wait_for("ended: the store belongs to another cluster. .* expected=`the red one`; it starts again", in_errors=True)
    shutil.rmtree(store)
    assert produce(running.ports[0], "kept", 1, timeout_ms=1000) == 0
    assert not store.exists()
    (tmp_path / "away").rename(store)
    running.wait_for("broker 1 serves again", in_errors=True, timeout_s=60)
    assert consume(running.ports[0], "kept") == list(range(10))
    running.process.send_signal(signal.SIGTERM)
    assert running.wait() == 0


def test_up_that_is_killed_leaves_no_broker_behind(spawn: Spawn, tmp_path: Path) -> None:
    running = spawn("up", "--store", str(tmp_path / "store"))
    running.wait_for("headgate serves")
    broker = only_child(running.process.pid)
    running.process.kill()
    until(lambda: not alive(broker), "the broker ends")


def test_up_goes_on_when_nobody_reads_what_it_says(spawn: Spawn, tmp_path: Path) -> None:
    """Stand for `headgate up 2>&1 | head -1`."""
    ports = [free_port() for _ in range(3)]
    doors = [f"--{door}-port={port}" for door, port in zip(("kafka", "grpc", "http"), ports, strict=True)]
    arguments = ["up", *doors, "--store", str(tmp_path / "store"), "--log-level", "info"]
    with subprocess.Popen(
        [sys.executable, "-m", "headgate.broker.cli.main", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT
    ) as process:
        try:
            assert process.stdout is not None
            assert b"engine_open" in process.stdout.readline(), "the log; what it is told of next is that it serves"
            process.stdout.close()
            assert until(lambda: is_ready(ports[2]) or process.poll() is not None, "it serves") and process.poll() is None
            assert produce(ports[0], "kept", 10) == 10
            process.terminate()
            assert process.wait(END_S) == 0
        finally:
            process.kill()


def test_up_says_why_it_cannot(spawn: Spawn, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    running = spawn("up", "--store", str(tmp_path / "file"))
    assert running.wait() == 1
    assert str(tmp_path / "file") in one_error_line(running)
    running = spawn("up", "--store", str(tmp_path / "last"), "--brokers", "2", "--kafka-port", "65530")
    assert running.wait() == 1
    assert "no free ports are left for another broker. first=`65530`" in one_error_line(running)
    for arguments, why in (
        (("--brokers", "3", "--max-brokers", "2"), "--max-brokers is not below --brokers. brokers=`3` max_brokers=`2`"),
        (("--max-brokers", "10000"), "a local cluster has 1 to 64 brokers"),
        (("--brokers", "2", "--advertised-kafka-port", "9"), "two brokers cannot have one address"),
        (("--foo",), "unknown setting"),
        (("--wal-fsync", "sometimes"), "expected one of always, interval, never. setting=`wal_fsync` value=`sometimes`"),
        (("--config", str(tmp_path / "nope")), str(tmp_path / "nope")),
        (("--kafka-port", "70000"), "expected a whole number from 0 to 65535"),
    ):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
        done = commands.run(["up", "--store", str(tmp_path / "store"), *arguments], environment, timeout_s=START_S)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert why in line
    assert not (tmp_path / "store").exists()


def is_ready(http_port: int) -> bool:
    """Whether /readyz reports ready."""
    connection = http.client.HTTPConnection("127.0.0.1", http_port, timeout=START_S)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def produce(port: int, topic: str, count: int, *, timeout_ms: int = 30_000) -> int:
    """Write this many records to partition 0; their keys are their numbers. Returns the number of acks."""
    acked = 0

    def delivered(error: KafkaError | None, message: Message) -> None:
        nonlocal acked
        acked += error is None

    # Some of these tests end the broker; librdkafka must not print that.
    settings = {"bootstrap.servers": f"{HOST}:{port}", "message.timeout.ms": timeout_ms, "log_level": 0}
    producer = Producer(settings)
    for number in range(count):
        producer.produce(topic, b"value", key=str(number).encode(), partition=0, on_delivery=delivered)
    assert producer.flush(60) == 0
    return acked


def consume(port: int, topic: str) -> list[int]:
    """The keys of partition 0, from its first record to its end."""
    consumer = Consumer({"bootstrap.servers": f"{HOST}:{port}", "group.id": "-", "enable.auto.commit": False, "log_level": 0})
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), 30)
        keys: list[int] = []
        deadline = time.monotonic() + 60
        while len(keys) < end and time.monotonic() < deadline:
            keys += [int(message.key() or b"-1") for message in consumer.consume(1000, 0.2) if not message.error()]
        return keys
    finally:
        consumer.close()


def get(broker: BrokerProcess, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(HOST, broker.http_port, timeout=60)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def only_child(parent: int) -> int:
    """The process id of the only child, from /proc."""
    (child,) = children(parent)
    return child


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_up_replaces_a_broker_that_does_not_answer(spawn: Spawn, tmp_path: Path) -> None:
    running = spawn("up", "--store", str(tmp_path / "store"), "--loop-timeout-ms", "3s")
    running.wait_for("headgate serves")
    assert produce(running.ports[0], "kept", 10) == 10
    broker = only_child(running.process.pid)
    os.kill(broker, signal.SIGSTOP)
    running.wait_for("broker 1 ended: it did not answer any more, and was killed; it starts again", in_errors=True)
    running.wait_for("serves again", in_errors=True)
    assert not alive(broker)
    assert consume(running.ports[0], "kept") == list(range(10))
    running.process.send_signal(signal.SIGTERM)
    assert running.wait() == 0


def knock(port: int) -> bool:
    """Whether a connection is accepted, at least by the kernel."""
    try:
        socket.create_connection((HOST, port), timeout=START_S).close()
    except (ConnectionRefusedError, ConnectionResetError):  # the second one: while the port closes
        return False
    return True


def test_a_broker_that_is_told_to_end_refuses_clients_though_up_keeps_its_port(spawn: Spawn, tmp_path: Path) -> None:
    """Clients look for another broker at once, instead of waiting for one that hands its segments over."""
    running = spawn("up", "--store", str(tmp_path / "store"), "--brokers", "2")
    running.wait_for("headgate serves")
    first = child_that_listens(running.process.pid, running.ports[0])
    os.kill(first, signal.SIGTERM)
    refused = False
    while "broker 1 serves again" not in running.err:
        refused |= not knock(running.ports[0])
        assert running.process.poll() is None
        time.sleep(0.001)
    assert refused
    assert knock(running.ports[0])


def test_clients_of_several_brokers_are_refused_by_one_that_waits_long(spawn: Spawn, tmp_path: Path) -> None:
    running = spawn("up", "--store", str(tmp_path / "store"), "--brokers", "2")
    running.wait_for("headgate serves")
    pauses_s: list[float] = []
    while not pauses_s or pauses_s[-1] <= KEPT_MS_MAX / 1000:  # a pause after a broker that served for a second is short again
        while running.err.count("broker 1 serves again") < len(pauses_s):
            assert knock(running.ports[0]), "refused before a short pause"
            time.sleep(0.01)
        with suppress(ProcessLookupError):
            os.kill(child_that_listens(running.process.pid, running.ports[0]), signal.SIGKILL)
        ends = r"broker 1 ended: killed by SIGKILL; it starts again in ([\d.]+) s\n"
        while len(found := re.findall(ends, running.err)) == len(pauses_s):
            time.sleep(0.005)
        pauses_s = [float(one) for one in found]
    refused = False
    while running.err.count("broker 1 serves again") < len(pauses_s):
        refused |= not knock(running.ports[0])
        time.sleep(0.005)
    assert refused


def child_that_listens(pid: int, port: int) -> int:
    """The broker of `headgate up` with this port in its command line."""
    begun = children(pid)
    (found,) = (child for child, command in begun.items() if f"kafka-port={port} " in f"{command} ")
    return found
