"""A user who cancels floods at Dagster's page, played by a headless Chromium that only clicks: one run in each phase.

Runs: `headgate up`, Dagster's daemon and web server, Spark. Compared: the one sentence that the run's page shows, and the state
afterwards: one broker, no reservation, no open gate, nothing in the topic but what the sentence says. With HEADGATE_PICTURES=DIR
the test saves its screenshots there. A mismatch means that a cancelled flood keeps brokers or gates, or says something else.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.chromium import Page, chromium
from tests.support.flood_world import ENDED, FloodWorld, flood_world

FLOODS = """floods:
  - name: many
    topic: many
    topic_partitions: 2
    source: {directory}/many
    event_time: at
    partitions: {{by: day, start: 2026-01-01, end: 2026-01-11}}
    reservation_ttl: 30s
  - name: large
    topic: large
    topic_partitions: 4
    source: {directory}/large.parquet
    key: user
    event_time: at
    partitions: {{by: day, start: 2026-01-01, end: 2026-01-11}}
    catch_up: 1s
    brokers: {{min: 2, max: 2, wait: 5m}}
    reservation_ttl: 30s
    gate_ttl: 60s
"""
FILES = 20_000
"""Files whose footers a plan reads: it takes long enough for a click."""
WIDTH, HEIGHT = 1360, 1200
"""Of the page: the end of a run's log is in it."""
DAYS = 4
ROWS_PER_DAY = 2_500_000
FIRST = 1_767_225_600_000_000
"""The first of January 2026, in microseconds."""
DAY_US = 86_400_000_000


def make_sources(directory: Path) -> None:
    """One file under many names, and a file of several days that take Spark some seconds each."""
    (directory / "many").mkdir()
    one = directory / "one.parquet"
    pq.write_table(pa.table({"at": pa.array([FIRST], pa.timestamp("us", "UTC"))}), one)
    for number in range(FILES):
        os.link(one, directory / "many" / f"{number:05}.parquet")
    with pq.ParquetWriter(directory / "large.parquet", SCHEMA, compression="zstd") as writer:
        for day in range(DAYS):
            numbers = np.arange(ROWS_PER_DAY)
            times = FIRST + day * DAY_US + numbers * (DAY_US // ROWS_PER_DAY)
            users = pa.array(numbers % 9_973).cast(pa.string())
            writer.write_table(pa.table([users, pa.array(times).cast(SCHEMA.field("at").type)], schema=SCHEMA), 250_000)


SCHEMA = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", "UTC"))])


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A phase in which a run is cancelled.

    `reached`: whether a run is in it. `says`: the sentence of the run's page, as a pattern. `starved`: no broker is started
    meanwhile.
    """

    name: str
    flood: str
    days: str
    reached: Callable[[FloodWorld, str], bool]
    says: str
    starved: bool = False


def said(text: str) -> Callable[[FloodWorld, str], bool]:
    """True once a run's log has this text."""
    return lambda world, run_id: text in world.messages(run_id)


def gates_open(world: FloodWorld, run_id: str) -> bool:
    return any(str(gate.state) == "open" for gate in world.cluster.gates("large").values())


NOTHING = r"Brokers and gates are released, and nothing was added: run the same days again\."
PHASES = [
    Phase(
        name="planning", flood="many", days="2026-01-01", reached=said("planning"),
        says=r"cancelled while planning\. No brokers were asked for, and nothing was added: run the same days again\.",
    ),
    Phase(
        name="brokers", flood="large", days="2026-01-01", reached=said("waiting for brokers"), starved=True,
        says=rf"cancelled while waiting for brokers\. {NOTHING}",
    ),
    Phase(
        name="gates", flood="large", days="[2026-01-01...2026-01-04]", reached=gates_open,
        says=rf"cancelled while (counting|writing 2026-01-01|shuffling 2026-01-01)\. {NOTHING}",
    ),
    Phase(
        name="writing", flood="large", days="2026-01-01", reached=said("writing 2026-01-01"),
        says=rf"cancelled while writing 2026-01-01\. {NOTHING}",
    ),
    Phase(
        name="verifying", flood="large", days="2026-01-01", reached=said("verifying 2026-01-01"),
        says=r"cancelled while verifying 2026-01-01\. Brokers and gates are released, and the partition was added and stays: "
        r"run the same days again\.",
    ),
]  # fmt: skip


RUNS = r"""
    [...document.querySelectorAll("a[href*='/runs/']")].map(one => one.href.match(/runs\/([0-9a-f-]{36})/)?.[1]).filter(one => one)
""".strip()
"""The runs that a page has links to."""


class User:
    """Launches and cancels runs at the page, by clicks."""

    def __init__(self, world: FloodWorld, page: Page, pictures: Path) -> None:
        self.world, self.page, self._pictures = world, page, pictures
        self._runs: list[str] = []
        page.ask("Emulation.setDeviceMetricsOverride", width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=False)

    def launch(self, flood: str, days: str) -> str:
        """Launch a flood from its graph, and follow the link to the page of its run. Returns the run."""
        page, several = self.page, days.startswith("[")
        page.open(f"{self.world.dagster.url}/locations/headgate/asset-groups/{flood}/lineage")
        page.until_text(f"{flood}_source")
        page.click("Materialize (1)…")
        page.write("input[placeholder^='ex: 2026-01-01']", days)
        page.until_text(f"{DAYS} partitions" if several else "1 partition")
        page.click("Launch backfill" if several else "Launch 1 run")
        new = f"{RUNS}.filter(one => !{json.dumps(self._runs)}.includes(one))[0]"
        run_id = self._backfilled() if several else str(page.until("a new run", new))
        self._runs.append(run_id)
        page.open(f"{self.world.dagster.url}/runs/{run_id}")  # the link would open another tab
        return run_id

    def _backfilled(self) -> str:
        """The run of the only backfill, which the list of runs has a link to."""
        dagster, runs = self.world.dagster, list[str]()
        self.page.open(f"{dagster.url}/runs")
        link = "document.querySelector(\"a[href*='/runs/b/']\")?.href"
        backfill_id = str(self.page.until("the backfill", link)).partition("/runs/b/")[2].partition("?")[0]

        def begun() -> bool:
            runs.extend(dagster.backfill_status(backfill_id)[1])
            return bool(runs)

        self.world.until("the backfill's run", begun)
        return runs[0]

    def cancel(self) -> None:
        """Press the button of the run's page, and the one of its dialog. Before the page knows that the run has started, the dialog
        offers only to force it."""
        self.page.until_text("Executing (1)")
        self.page.click("Terminate", "button")
        self.page.click("Terminate 1 run", "button")

    def told(self) -> set[str]:
        """The sentences about a cancellation, at the end of the run's log, which the page shows."""
        self.page.until_text("cancelled while")
        return set(re.findall(r"cancelled while [^\n]*", self.page.text()))

    def picture(self, name: str) -> None:
        self.page.picture(self._pictures / f"cancelled-{name}.png")


@contextmanager
def no_more_brokers(world: FloodWorld, enabled: bool) -> Iterator[None]:
    """`headgate up` starts no broker meanwhile."""
    pid = next(process.pid for name, process, _ in world.processes.running if name == "brokers")
    if enabled:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
@pytest.mark.chromium
@pytest.mark.timeout(3600)
def test_a_run_is_cancelled_in_each_phase(tmp_path: Path) -> None:
    pictures = Path(os.environ.get("HEADGATE_PICTURES", tmp_path / "pictures"))
    make_sources(tmp_path)
    with flood_world(tmp_path) as world:
        (tmp_path / "floods.yaml").write_text(FLOODS.format(directory=tmp_path))
        world.start_brokers(2)
        world.start_dagster()
        with chromium(tmp_path) as page:
            user = User(world, page, pictures)
            for phase in PHASES:
                cancel_in(phase, user)


def cancel_in(phase: Phase, user: User) -> None:
    """Launch a run, cancel it in a phase, and look at what the page says and at what is left."""
    world, page = user.world, user.page
    with no_more_brokers(world, phase.starved):
        run_id = user.launch(phase.flood, phase.days)
        world.until(f"the run is {phase.name}", lambda: phase.reached(world, run_id) or world.dagster.run_status(run_id) in ENDED)
        user.cancel()
        assert world.run_to_end(run_id) == "CANCELED", world.dagster.failure(run_id)
    found = user.told()
    user.picture(phase.name)
    assert len(found) == 1 and re.fullmatch(phase.says, *found), (phase.name, found)
    assert "Traceback" not in page.text()
    world.until("the world is at rest", lambda: at_rest(world, phase.flood))


def at_rest(world: FloodWorld, topic: str) -> bool:
    """One broker runs, nothing is reserved and no gate is open."""
    return (
        world.cluster.desired().live_brokers == 1
        and not world.cluster.reservations()
        and all(str(gate.state) != "open" for gate in world.cluster.gates(topic).values())
    )
