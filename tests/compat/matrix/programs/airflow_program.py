"""Airflow, in an environment of its own, runs the DAG of `pipelines/orchestrators.md`: scheduler, workers, and the wait for a gate.

The cluster is a broker of its own. The state of runs and tasks is read from Airflow's database.
"""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.broker.cli.flood_file import Cluster
from tests.compat.matrix.artifacts import ROOT
from tests.compat.matrix.programs.steps import same, step
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.clients.all import CLIENTS
from tests.support.ports import free_port

PAGE = ROOT / "pipelines" / "orchestrators.md"
DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")
ROWS = 1000
PATIENCE_S = 300.0
CHANGES = {
    # The scheduler makes runs until now: of eleven months.
    "catchup=True,": "catchup=True, end_date=datetime(2026, 1, 3),",
    # Both tasks begin at once, so that one of them waits for the other one's gate.
    "load() >> is_there()": "load(), is_there()",
    "poke_interval=60": "poke_interval=2",
    "timedelta(minutes=2)": "timedelta(seconds=2)",
}


def make_world(home: Path, broker: BrokerProcess) -> None:
    """A source of three days, the page's file of floods, and its DAG for this broker."""
    (home / "lake").mkdir()
    (home / "dags").mkdir()
    for day in DAYS:
        first = datetime.fromisoformat(day).replace(tzinfo=UTC)
        times = pa.array([first + timedelta(seconds=row) for row in range(ROWS)], pa.timestamp("us", "UTC"))  # type: ignore[call-overload]
        users = [f"{day} {row}" for row in range(ROWS)]
        pq.write_table(pa.table({"at": times, "user": users}), home / "lake" / f"{day}.parquet")
    page = PAGE.read_text()
    (floods, *_) = re.findall(r"^```yaml\n(.*?)^```$", page, re.M | re.S)
    (dag,) = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    (home / "floods.yaml").write_text(floods.replace("/data/lake/", f"{home}/lake/"))
    ours = {
        "127.0.0.1:9095": f"{HOST}:{broker.grpc_port}",
        "127.0.0.1:9090": f"{HOST}:{broker.http_port}",
        "/etc/headgate": str(home),
    }
    for old, new in (CHANGES | ours).items():
        assert old in dag, f"the page has no `{old}`"
        dag = dag.replace(old, new)
    (home / "dags" / "clicks.py").write_text(dag)


def environment(home: Path) -> dict[str, str]:
    """Airflow's environment: its own Python, and the headgate of this one on the path."""
    port = free_port()
    path = os.pathsep.join((str(Path(os.environ["AIRFLOW_PYTHON"]).parent), str(Path(sys.executable).parent), os.environ["PATH"]))
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON"))},
        "PATH": path,
        "AIRFLOW_HOME": str(home / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://{HOST}:{port}/execution/",
        "AIRFLOW__CORE__PARALLELISM": "3",
        "AIRFLOW__API__HOST": HOST,
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
    }


@contextmanager
def airflow(home: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Airflow's processes, all of them."""
    with (home / "airflow.log").open("wb") as log:
        process = subprocess.Popen(
            [os.environ["AIRFLOW_PYTHON"], "-m", "airflow", "standalone"],
            cwd=home, env=dict(environment), stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            os.killpg(process.pid, 15)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait(60)


def ask(home: Path, sql: str) -> list[tuple[str, ...]]:
    """Rows of Airflow's database; none before it has tables."""
    try:
        with closing(sqlite3.connect(f"file:{home}/airflow/airflow.db?mode=ro", uri=True)) as database:
            return database.execute(sql).fetchall()
    except sqlite3.OperationalError:
        return []


def days(home: Path, broker: BrokerProcess, process: subprocess.Popen[bytes]) -> None:
    """Three runs, one after another, load three days; the order in the topic is that of time."""
    deadline = time.monotonic() + PATIENCE_S
    runs: list[tuple[str, ...]] = []
    while len(runs) < len(DAYS) or any(state != "success" for _, state in runs):
        runs = ask(home, "select data_interval_start, state from dag_run order by 1")
        failed = [run for run in runs if run[1] == "failed"]
        if failed or process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"runs={runs} log={(home / 'airflow.log').read_text(errors='replace')[-300:]}")
        time.sleep(0.5)
    same([start[:10] for start, _ in runs], list(DAYS))
    found = CLIENTS["confluent"].consume(broker.bootstrap, "clicks", range(4))
    times = [[row.timestamp_ms for row in rows] for rows in found.values()]
    same([sum(map(len, times)), all(one == sorted(one) for one in times)], [len(DAYS) * ROWS, True])
    same(Cluster(f"{HOST}:{broker.grpc_port}").reservations(), [])


def waits(home: Path) -> None:
    """Each wait ended well, and one of them at least gave its worker back in between."""
    states = ask(home, "select state from task_instance where task_id = 'is_there'")
    same(states, [("success",)] * len(DAYS))
    same(bool(ask(home, "select 1 from task_reschedule")), True)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="headgate-airflow-") as name:
        home = Path(name)
        with BrokerProcess(home / "store", home / "broker.log") as broker:
            broker.start()
            make_world(home, broker)
            with airflow(home, environment(home)) as process:
                step("days", lambda: days(home, broker, process))
                step("waits", lambda: waits(home))


if __name__ == "__main__":
    main()
