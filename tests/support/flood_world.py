"""A complete world for floods: `headgate up`, Dagster with daemon and web server, the flights of June 2013, a topic."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headgate.assets.demo import flights
from headgate.assets.demo.dagster_api import DagsterApi
from headgate.assets.demo.play import environment, start_dagster
from headgate.assets.demo.processes import Processes
from headgate.assets.resources import ClusterResource
from tests.support.ports import free_port
from tests.support.waiting import until

FLOOD = "flights"
TOPIC = "flights"
ENDED = ("SUCCESS", "FAILURE", "CANCELED")
PATIENCE_S = 600.0
"""Ends a hang. Each step takes seconds on an idle machine, and minutes on a busy one."""

FLOODS = """floods:
  - name: flights
    topic: flights
    topic_partitions: 4
    source: {path}
    key: coalesce(tailnum, 'unknown')
    event_time: time_hour
    partitions: {{by: day, start: 2013-06-01, end: 2013-07-01}}
    deadline: 1h
    catch_up: 1s
    brokers: {{min: 1, max: {brokers}, bytes_per_s: 1KiB, wait: 5m}}
    reservation_ttl: 30s
    gate_ttl: 60s
"""


class FloodWorld:
    """The operations that tests use. `rows`: of each day of June."""

    def __init__(self, directory: Path, processes: Processes, ports: dict[str, int]) -> None:
        self.directory = directory
        self.processes = processes
        self.ports = ports
        self.cluster = ClusterResource(address=f"127.0.0.1:{ports['grpc']}")
        self.dagster = DagsterApi(f"http://127.0.0.1:{ports['dagster']}")
        self.rows: dict[str, int] = {}

    def start_brokers(self, most: int) -> None:
        ports = [part for name in ("kafka", "grpc", "http") for part in (f"--{name}-port", str(self.ports[name]))]
        store = str(self.directory / "store")
        self.processes.start("brokers", "headgate.broker.cli.main", "up", "--store", store, "--max-brokers", str(most), *ports)
        self.until("the broker serves", lambda: " serves " in self.processes.tail("brokers"))

    def make_flights(self, brokers: int, grown: int = 1) -> None:
        import pyarrow.compute as pc

        path = self.directory / "history.parquet"
        table = flights.load()
        flights.write_history(table, path, grown)
        june = table.filter(pc.equal(table["month"], flights.HISTORY_MONTH))  # type: ignore[call-overload]
        days = pc.value_counts(pc.strftime(june["time_hour"], "%Y-%m-%d")).to_pylist()
        self.rows = {one["values"]: one["counts"] * grown for one in days}
        (self.directory / "floods.yaml").write_text(FLOODS.format(path=path, brokers=brokers))

    def start_dagster(self) -> None:
        start_dagster(self.processes, self.directory, self.ports)
        self.until("Dagster is ready", self.dagster.ready)

    def until(self, what: str, ready: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        until(ready, lambda: f"{what}\n{self.processes.tail('brokers', 30)}", patience_s, pause_s=0.2)

    def run_to_end(self, run_id: str) -> str:
        self.until("the run ends", lambda: self.dagster.run_status(run_id) in ENDED)
        return self.dagster.run_status(run_id)

    def flood(self, first: str, last: str) -> str:
        """Run a flood that must succeed. Returns its run."""
        run_id = self.dagster.launch(FLOOD, first, last)
        assert self.run_to_end(run_id) == "SUCCESS", self.dagster.failure(run_id)
        return run_id

    def messages(self, run_id: str) -> str:
        return "\n".join(str(event.get("message")) for event in self.dagster.events(run_id))

    def worker(self, run_id: str) -> int:
        """The process id of a run, from its log."""
        match = re.search(r"Started process for run \(pid: (\d+)\)", self.messages(run_id))
        assert match is not None, "the run has no process yet"
        return int(match[1])

    def added(self, run_id: str) -> int:
        return sum(int(one["rows added"]) for one in self.dagster.metadata(FLOOD, run_id).values())

    def at_rest(self) -> bool:
        """Wait until one broker runs, nothing is reserved and no gate is open."""
        return (
            self.cluster.desired().live_brokers == 1
            and not self.cluster.reservations()
            and all(str(gate.state) != "open" for gate in self.cluster.gates(TOPIC).values())
        )

    def descendants(self, word: str) -> list[int]:
        """Processes of this world with a word in their command line. Processes of Dagster, Spark and the brokers have our
        directory or ports in their command line, or descend from one that has."""
        found = subprocess.run(["ps", "-ww", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
        rows = [line.split(None, 2) for line in found.splitlines()]
        parents = {int(pid): int(parent) for pid, parent, *_ in rows}
        roots = {process.pid for _, process, _ in self.processes.running}

        def ours(pid: int) -> bool:
            while pid > 1:
                if pid in roots:
                    return True
                pid = parents.get(pid, 0)
            return False

        return [int(row[0]) for row in rows if len(row) == 3 and word in row[2] and ours(int(row[0]))]


@contextmanager
def flood_world(directory: Path) -> Iterator[FloodWorld]:
    """Start the world. All its processes end with it."""
    ports = {name: free_port() for name in ("kafka", "grpc", "http", "dagster")}
    with Processes(directory, environment(directory, ports)) as processes:
        yield FloodWorld(directory, processes, ports)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
