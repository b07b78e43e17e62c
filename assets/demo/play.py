"""The demo's plot: a quiet minute, a flood, another quiet minute. `Facts` holds the measurements."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from headgate.assets import ui
from headgate.assets.demo import flights, live
from headgate.assets.demo.dagster_api import DagsterApi
from headgate.assets.demo.processes import Processes, free_port, machine_is_busy, wait_for
from headgate.assets.recorder import Sample, broker_seconds, peak
from headgate.assets.resources import ClusterResource
from headgate.broker.runtime.errors import FatalError, HeadgateError, Reason, RetryError
from headgate.pipelines.room import ROOM, ROOM_OFFSETS

TOPIC = "flights"
FLOOD = "flights"
PARTITIONS = 6
BROKERS_MAX = 3
FIRST_DAY = date(2013, 6, 10)
STILL_S = 30.0
"""Time without news after which the reason for the number of brokers is told."""
START_S, RUN_S, LEAVE_S = 3600.0, 4 * 3600.0, 3600.0
"""Bounds of a hang, in seconds: start, flood, and the leave of brokers take seconds each, and many minutes on a starved machine."""
PATIENCE_S = 1800.0
"""Time in which Dagster, or the cluster, may leave a question unanswered, in seconds."""
DAGSTER_S = 240
"""Time-outs of Dagster's parts for one another, in seconds. Its own are 30 and 60."""
LAST_ACKS_S = live.FLUSH_S + 60.0
"""Longest wait for the live producer's end, in seconds."""
LANE_BYTES = "4KiB"
"""History ahead of a consumer that goes to a lane. The demo's files are small, because most of their content is repeated: the
default would send no reader there."""
BACK = "read back"
"""The span of time in which the history is read again."""
SAMPLE_S = 0.5
NICE = 19
"""Niceness of Dagster, its Spark, and the readers of history after their start. They share one machine with brokers and
producers here, unlike in production. On a machine that other processes keep busy they do not give way: they would stand still."""
ENDED = ("SUCCESS", "FAILURE", "CANCELED")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The user's options. `grown`: repetitions of each flight in the history. `rate`: live flights per second."""

    days: int = 3
    grown: int = 50
    rate: float = 250.0
    """Live records per second. One broker keeps them with less than half of a core, also on a slow machine: else two would stay."""
    quiet_s: float = 12.0
    keep: bool = False


@dataclass
class Facts:
    """The measurements."""

    days: list[str] = field(default_factory=list)
    history_rows: int = 0
    planned_rows: int = 0
    live_rows: int = 0
    flood_s: float = 0.0
    backfill_s: float = 0.0
    samples: list[Sample] = field(default_factory=list)
    acks_ms: dict[str, tuple[float, float, int]] = field(default_factory=dict)
    """By span of time: median, p99, and the number of acks."""
    back_rounds: int = 0
    """How often the history was read again."""
    back_bytes: dict[str, float] = field(default_factory=dict)
    """Bytes of history that lanes and brokers sent meanwhile."""
    checks: dict[str, bool] = field(default_factory=dict)
    certificates: list[dict[str, Any]] = field(default_factory=list)
    readers: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    urls: dict[str, str] = field(default_factory=dict)

    @property
    def broker_seconds(self) -> float:
        return broker_seconds(self.samples)

    @property
    def always_on_seconds(self) -> float:
        return BROKERS_MAX * self.samples[-1].at_s if self.samples else 0.0

    @property
    def brokers(self) -> list[int]:
        """The numbers of brokers, one after the other: 1, 3, 1."""
        found: list[int] = []
        for sample in self.samples:
            if not found or found[-1] != sample.live:
                found.append(sample.live)
        return found


class _Patient:
    """Does something each time that `STILL_S` have passed, while nothing new happens."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._since_s = time.monotonic()

    def look(self) -> None:
        if time.monotonic() - self._since_s > STILL_S:
            self._act()
            self._since_s = time.monotonic()


class Demo:
    """The processes, and their tasks."""

    def __init__(
        self, directory: Path, processes: Processes, options: Options, ports: dict[str, int], say: Callable[[str], None]
    ) -> None:
        self.options = options
        self.facts = Facts()
        self.cluster = ClusterResource(address=f"127.0.0.1:{ports['grpc']}")
        self.dagster = DagsterApi(f"http://127.0.0.1:{ports['dagster']}", PATIENCE_S, processes.check)
        self.page = f"http://127.0.0.1:{ports['http']}"
        self._directory = directory
        self._processes = processes
        self._ports = ports
        self._say = say
        self._began = time.monotonic()
        self._stop = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._busy = machine_is_busy()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._ports['kafka']}"

    def play(self) -> Facts:
        """Run the whole demo. Raises HeadgateError when a process does not start or does not end."""
        if self._busy:
            self._say("other processes keep this machine busy: everything takes longer, and latencies say little")
        self._start_brokers()
        self._start_dagster()
        self._make_data()
        self._make_topic()
        latest = self._processes.start("latest", "headgate.assets.demo.reader", self.bootstrap, TOPIC, "latest", talk=True)
        _expect(latest, "ready", self._processes)
        self._start_producer()
        self._say("waiting for Dagster")
        wait_for("dagster's page", self.dagster.serves, START_S, self._processes.check)
        self._say(f"Dagster's page: {self.dagster.url}")
        wait_for("dagster's code location", self.dagster.ready, START_S, self._processes.check)
        self._give_way("dagster")
        self._say(f"live flights at {self.options.rate:g} a second, nothing else: {self.options.quiet_s:g} s")
        time.sleep(2)  # Dagster's daemons take their first look at everything
        quiet_from = time.time()
        time.sleep(self.options.quiet_s)
        flood_from = time.time()
        run_id = self._launch()
        earliest = self._earliest_when_gates_are_open(run_id)
        self._follow(run_id)
        flood_until = time.time()
        self._see_brokers_leave()
        self._say(f"live flights, nothing else: {self.options.quiet_s:g} s")
        after_from = time.time()
        time.sleep(self.options.quiet_s)
        after_until = time.time()
        back = self._read_back()
        self._stop_producer()
        self._hear_readers({"earliest": earliest, "latest": latest})
        self._stop.set()
        self._sampler.join()
        wait_for("the number of brokers", self._look, PATIENCE_S, self._processes.check)
        self.facts.flood_s = flood_until - flood_from
        self._measure({
            "before": (quiet_from, flood_from), "during": (flood_from, flood_until), "after": (after_from, after_until),
            BACK: back,
        })  # fmt: skip
        self._collect(run_id)
        return self.facts

    # -- the steps in their order

    def _start_brokers(self) -> None:
        self._say("one broker starts")
        ports = [part for name in ("kafka", "grpc", "http") for part in (f"--{name}-port", str(self._ports[name]))]
        store = str(self._directory / "store")
        self._processes.start(
            "brokers", "headgate.broker.cli.main", "up", "--store", store, "--max-brokers", str(BROKERS_MAX),
            "--history-lane-bytes", LANE_BYTES, *ports,
        )  # fmt: skip
        wait_for("the broker", lambda: " serves " in self._processes.tail("brokers"), START_S, self._processes.check)
        self._say(f"the broker's page: {self.page}")
        self._sampler.start()

    def _start_dagster(self) -> None:
        (self._directory / "floods.yaml").write_text(_FLOODS.format(
            path=self._directory / "history.parquet", partitions=PARTITIONS, brokers=BROKERS_MAX
        ))  # fmt: skip
        start_dagster(self._processes, self._directory, self._ports)

    def _make_data(self) -> None:
        self._say(f"flights of June 2013, each {self.options.grown} times, become a Parquet file")
        table = flights.load()
        flights.write_history(table, self._directory / "history.parquet", self.options.grown)
        flights.write_live(table, self._directory / "live.jsonl")
        self.facts.days = [(FIRST_DAY + timedelta(days=number)).isoformat() for number in range(self.options.days)]

    def _make_topic(self) -> None:
        def made() -> bool:
            # Room in front of everything, for history that arrives when the topic is live.
            self.cluster.create_topic(TOPIC, PARTITIONS, {ROOM: str(ROOM_OFFSETS)})
            return True

        wait_for("the topic", made, PATIENCE_S, self._processes.check)

    def _start_producer(self) -> None:
        self._processes.start(
            "live", "headgate.assets.demo.live", self.bootstrap, TOPIC, str(self.options.rate),
            str(self._directory / "live.jsonl"), str(self._directory / "acks.txt"),
        )  # fmt: skip

    def _launch(self) -> str:
        days = self.facts.days
        self._say(f"Dagster is asked for {days[0]} to {days[-1]}")
        run_id = self.dagster.launch(FLOOD, days[0], days[-1])
        self.facts.urls = {
            "this run": f"{self.dagster.url}/runs/{run_id}",
            "assets": f"{self.dagster.url}/asset-groups",
            "brokers": self.page,
            "kafka": self.bootstrap,
            "grpc": self.cluster.address,
        }
        return run_id

    def _earliest_when_gates_are_open(self, run_id: str) -> Any:
        """Start reading as soon as the topic's start is the start of the history, which has not arrived yet."""
        wanted = len(self.facts.days)

        def ready() -> bool:
            return len(self.cluster.gates(TOPIC)) >= wanted or self.dagster.run_status(run_id) in ENDED

        wait_for("the gates", ready, RUN_S, self._processes.check)
        self._say("gates are open; a consumer begins at the earliest offset, and waits there")
        process = self._processes.start(
            "earliest", "headgate.assets.demo.reader", self.bootstrap, TOPIC, "earliest", talk=True, gives_way=True
        )
        _expect(process, "ready", self._processes)
        self._give_way("earliest")
        return process

    def _give_way(self, name: str) -> None:
        if not self._busy:
            self._processes.give_way(name, NICE)

    def _follow(self, run_id: str) -> None:
        said, stays = "", _Patient(self._why_brokers_stay)
        deadline = time.monotonic() + RUN_S
        while (status := self.dagster.run_status(run_id)) not in ENDED:
            self._processes.check()
            if time.monotonic() > deadline:
                raise FatalError(Reason.TIMED_OUT, f"the flood does not end. run=`{run_id}`")
            brokers = self.facts.samples[-1].live if self.facts.samples else 0
            text = f"the flood runs: {brokers} broker{'s' if brokers != 1 else ''}"
            if text != said:
                self._say(text)
                said, stays = text, _Patient(self._why_brokers_stay)
            stays.look()
            time.sleep(0.3)
        if status != "SUCCESS":
            raise FatalError(Reason.INTERNAL, f"the flood failed: {self.dagster.failure(run_id)} run=`{run_id}`")

    def _why_brokers_stay(self) -> None:
        with contextlib.suppress(RetryError):
            self._say(f"the brokers stay: {self.cluster.desired().reasons[0]}")

    def _see_brokers_leave(self) -> None:
        stays = _Patient(self._why_brokers_stay)

        def check() -> None:
            self._processes.check()
            stays.look()

        try:
            wait_for("the end of the extra brokers", self._few_brokers, LEAVE_S, check)
        except FatalError as error:
            # One reason: a leader that was elected during the flood keeps all brokers that it found for some minutes.
            what = ""
            with contextlib.suppress(RetryError):
                desired = self.cluster.desired()
                what = f" brokers=`{desired.live_brokers}` asked_for=`{desired.brokers}` why=`{desired.reasons[0]}`"
            raise FatalError(error.reason, f"{error.message}{what}") from error

    def _few_brokers(self) -> bool:
        return self.cluster.desired().live_brokers <= 1 and len(self.cluster.view().members) <= 1

    def _read_back(self) -> tuple[float, float]:
        """Read the whole history again and again beside the live records. Returns the time of it: (from, until)."""
        rows = sum(certificate["added_rows"] for certificate in self._certificates())
        self._say(f"the history is read again and again, beside live flights: {self.options.quiet_s:g} s")
        process: Any = self._processes.start(
            "again",
            "headgate.assets.demo.reader",
            self.bootstrap,
            TOPIC,
            "again",
            str(rows),
            str(self.options.quiet_s),
            talk=True,
            gives_way=True,
        )
        self._give_way("again")
        _expect(process, "ready", self._processes)
        before, begin = self._history_bytes(), time.time()
        line = process.stdout.readline()
        until, after = time.time(), self._history_bytes()
        found = json.loads(line) if line else {"rounds": 0, "clean": False}
        self.facts.back_rounds = found["rounds"]
        self.facts.back_bytes = {where: after[where] - before[where] for where in after}
        if not found["clean"]:
            self.facts.problems.append("the history that was read again was not complete, each record once and in order")
        return begin, until

    def _history_bytes(self) -> dict[str, float]:
        """Bytes of history that lanes and brokers have sent to consumers."""
        view = self.cluster.view()
        return {
            where: sum(counter(member.http_port, "headgate_history_out_bytes_total") for member in members)
            for where, members in (("lanes", view.lanes), ("brokers", view.members))
        }

    def _stop_producer(self) -> None:
        log = self._processes.log("live")
        code = self._processes.stop("live", LAST_ACKS_S)
        try:
            ended = json.loads(log.read_text().splitlines()[-1])
        except (IndexError, ValueError):
            raise FatalError(Reason.INTERNAL, f"the live producer did not end by itself. exit_code=`{code}`") from None
        if code != 0:
            self.facts.problems.append(f"the live producer had to give up records. records=`{ended['failed']}`")
        self.facts.live_rows = int(ended["sent"])

    def _hear_readers(self, readers: dict[str, Any]) -> None:
        self._say("consumers read to the end and judge")
        rows = sum(certificate["added_rows"] for certificate in self._certificates())
        for name, process in readers.items():
            process.stdin.write(f"{rows if name == 'earliest' else 0} {self.facts.live_rows}\n")
            process.stdin.flush()
        for name, process in readers.items():
            line = process.stdout.readline()
            if not line:
                raise FatalError(Reason.INTERNAL, f"the consumer from {name} gave no verdict\n{self._processes.tail(name)}")
            self.facts.readers[name] = json.loads(line)

    def _certificates(self) -> list[dict[str, Any]]:
        if not self.facts.certificates:
            kept = (self._directory / "dagster").glob("**/headgate/*/*/certificate-*.json")
            self.facts.certificates = [json.loads(path.read_text()) for path in sorted(kept, key=lambda path: path.name)]
        return self.facts.certificates

    def _measure(self, spans: dict[str, tuple[float, float]]) -> None:
        acks: list[tuple[float, float]] = []
        for line in (self._directory / "acks.txt").read_text().splitlines():
            sent_ms, latency_ms = line.split()
            acks.append((float(sent_ms) / 1000, float(latency_ms)))
        for name, (begin, end) in spans.items():
            found = sorted(latency for sent, latency in acks if begin <= sent < end)
            if found:
                self.facts.acks_ms[name] = (found[len(found) // 2], found[min(len(found) - 1, int(len(found) * 0.99))], len(found))

    def _collect(self, run_id: str) -> None:
        facts = self.facts
        facts.checks = self.dagster.checks(run_id)
        facts.history_rows = sum(certificate["added_rows"] for certificate in facts.certificates)
        found = list(self.dagster.metadata(FLOOD, run_id).values())
        plan = json.loads(found[0]["plan"]) if found else {}
        facts.planned_rows = int(plan.get("rows", 0))
        facts.backfill_s = sum(float(step.get("seconds", 0.0)) for step in found)
        facts.problems += [f"check {name} failed" for name, passed in facts.checks.items() if not passed]
        if len(facts.certificates) != len(facts.days) or not all(certificate["verified"] for certificate in facts.certificates):
            facts.problems.append("a certificate is missing or not complete")
        for name, verdict in facts.readers.items():
            wanted = facts.history_rows if name == "earliest" else 0
            if not verdict["clean"] or verdict["live"] != facts.live_rows or verdict["history"] != wanted:
                facts.problems.append(f"the consumer from {name} did not see what it should: {json.dumps(verdict)}")
        # A small flood (--days, --grown) does not need the maximum.
        brokers = int(plan.get("brokers", BROKERS_MAX))
        if peak(facts.samples) < brokers:
            facts.problems.append(f"there were never {brokers} brokers, which the plan asked for")
        if facts.samples[-1].live != 1:
            facts.problems.append("brokers were left")

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            with contextlib.suppress(HeadgateError):  # the loop asks again in half a second
                self._look()

    def _look(self) -> bool:
        desired = self.cluster.desired()
        at_s = time.monotonic() - self._began
        self.facts.samples.append(
            Sample(
                at_s=at_s,
                desired=desired.brokers,
                live=desired.live_brokers,
                bytes_in_per_s=0.0,
                bytes_out_per_s=0.0,
                rows_done=0,
            )
        )
        return True


def counter(http_port: int, name: str) -> float:
    """A counter of a broker's or a lane's metrics. Raises OSError."""
    with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def environment(directory: Path, ports: dict[str, int]) -> dict[str, str]:
    """The environment of the demo's processes, added to ours."""
    return {
        "DAGSTER_HOME": str(directory / "dagster"),
        "HEADGATE_CLUSTER": f"127.0.0.1:{ports['grpc']}",
        "HEADGATE_FLOODS": str(directory / "floods.yaml"),
        "HEADGATE_SPARK_MASTER": os.environ.get("HEADGATE_SPARK_MASTER", "local[*]"),
        "DAGSTER_DISABLE_TELEMETRY": "1",
        "DAGSTER_GRPC_TIMEOUT_SECONDS": str(DAGSTER_S),
        "DAGSTER_PROXY_SERVER_HEARTBEAT_TIMEOUT": str(DAGSTER_S),
    }


def start_dagster(processes: Processes, directory: Path, ports: Mapping[str, int]) -> None:
    """Start what `headgate ui` runs, as the process `dagster`."""
    planned = ui.plan(["--port", str(ports["dagster"])], environment(directory, dict(ports)), directory)
    processes.launch("dagster", planned.command[1:], gives_way=True)


def choose_ports() -> dict[str, int]:
    """Choose free ports."""
    return {name: free_port() for name in ("kafka", "grpc", "http", "dagster")}


def _expect(process: Any, word: str, processes: Processes) -> None:
    line = process.stdout.readline().strip()
    if line != word:
        processes.check()
        raise FatalError(Reason.INTERNAL, f"a consumer did not start. said=`{line}`")


_FLOODS = """floods:
  - name: flights
    topic: flights
    topic_partitions: {partitions}
    source: {path}
    key: coalesce(tailnum, 'unknown')
    event_time: time_hour
    partitions: {{by: day, start: 2013-06-01, end: 2013-07-01}}
    deadline: 8h
    # The brokers are to hand a flood to its readers within a second: this asks for as many as there may be.
    catch_up: 1s
    brokers: {{min: 1, max: {brokers}, bytes_per_s: 100KiB, wait: 30m}}
    place: front
    # How long brokers and gates outlive a run that is dead, or too starved to renew them.
    reservation_ttl: 10m
    gate_ttl: 30m
"""
