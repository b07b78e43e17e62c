"""`headgate flood run FILE` without a cluster: the partitions that are asked for, the exit codes, the sentences, and what is left.

Runs: the command's steps against the stand-ins of Dagster's asset; in this process the command line for what it refuses at once.
A mismatch means that a retry of cron or Airflow repeats a mistake, gives up too early, or leaves brokers behind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.broker.cli import flood_file
from headgate.broker.cli.app import run as headgate
from headgate.broker.cli.flood_report import CODES, Report, State, state_after
from headgate.broker.runtime.errors import FatalError, HeadgateError, InvalidError, Reason, RetryError
from headgate.pipelines.cluster import GroupLag
from headgate.pipelines.fleets.settings import FleetSettings
from headgate.pipelines.floods.asked import keys_of, one_of
from headgate.pipelines.floods.model import Brokers, Flood, Partitions
from headgate.pipelines.floods.run import Run
from headgate.pipelines.follower import Follower
from headgate.pipelines.reservations import RESERVATIONS
from tests.support.floods import flood
from tests.support.stand_in import StandInCluster, StandInSpark, book

NOW = datetime(2026, 2, 10, 12, tzinfo=UTC)
DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")
ROWS = {DAYS[0]: 10, DAYS[1]: 20, DAYS[2]: 0}
REFUSED = InvalidError(Reason.NOT_AUTHORIZED, "no permission. operation=`create`")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Parquet file with the rows of two days."""
    path = tmp_path_factory.mktemp("clicks") / "clicks.parquet"
    times = [datetime.fromisoformat(day).replace(tzinfo=UTC) + timedelta(minutes=n) for day in DAYS for n in range(ROWS[day])]
    pq.write_table(pa.table({"at": pa.array(times, pa.timestamp("us", "UTC")), "user": [f"u{n}" for n in range(len(times))]}), path)
    return str(path)


class World:
    """One flood against stand-ins, run as the command does it."""

    def __init__(self, source: str, directory: Path, **changes: Any) -> None:
        self.name, self.book = book()
        self.book.rows = ROWS
        brokers = Brokers(minimum=1, maximum=3, bytes_per_s=1, wait_ms=0)
        self.flood = flood(source, **{"key": "user", "brokers": brokers, "catch_up_ms": 1000, "topic_partitions": 8, **changes})
        self.directory = directory
        self.said: list[str] = []

    def run(self, *keys: str, flood: Flood | None = None) -> Report:
        cluster, spark = StandInCluster(name=self.name), StandInSpark(name=self.name)
        log = self.directory / "spark.log"
        log.touch()
        with Follower(self.said.append) as follow:
            run = Run(
                flood=flood or self.flood, cluster=cluster, keys=keys or DAYS, reservation_id="clicks.0123", owner="me",
                say=follow.say, warn=follow.say, began=datetime.now(UTC), ttl_ms=1000,
            )  # fmt: skip
            try:
                return flood_file.work(run, spark, FleetSettings(), follow, self.directory, log)
            except flood_file.FailedRunError as error:
                return error.report

    def called(self, what: str) -> list[Any]:
        return [call for call in self.book.calls if call[0] == what]


@pytest.fixture
def world(source: str, tmp_path: Path) -> Iterator[World]:
    made = World(source, tmp_path)
    yield made
    assert made.book.reservations == {} and RESERVATIONS.held() == [], "a run ended and its brokers are still reserved"


def test_a_run_raises_brokers_loads_and_gives_them_back(world: World, tmp_path: Path) -> None:
    report = world.run()
    assert (report.state, report.code) == (State.ADDED, 0), report
    assert report.text == (
        "clicks: 30 records added to topic clicks, in 2 partitions, read back and complete, 1 partition without rows"
    )
    assert [call[2] for call in world.called("reserve")] == [3, 3] and len(world.called("release")) == 1
    assert len(world.book.segments) == 1, "merged again"
    found = report.to_json()
    assert [(one["partition"], one["rows"], one["added_rows"]) for one in found["partitions"]] == [
        (day, rows, rows) for day, rows in ROWS.items()
    ]
    assert (found["added_rows"], found["rows"], found["brokers"], found["retry"]) == (30, 30, 3, False)
    kept = json.loads((tmp_path / f"clicks-{DAYS[0]}.json").read_text())
    assert kept == json.loads(json.dumps(found["certificates"][DAYS[0]])) and kept["added_rows"] == 10
    assert "planned: 30 rows" in "\n".join(world.said) and "brokers that serve: 3" in world.said


def test_the_plan_reserves_lanes_for_the_groups_that_read(source: str, tmp_path: Path) -> None:
    world = World(source, tmp_path, catch_up_ms=1)
    world.book.lags = [{name: GroupLag(lag=1, position=1, members=name != "gone") for name in ("a", "b", "gone")}]
    assert world.run().code == 0
    assert any(line.startswith("lanes: 1 (2 groups catch up at ") for line in world.said), world.said
    assert [call[4] for call in world.called("reserve")] == [1, 1]


def test_a_second_run_adds_nothing_and_asks_for_nothing(world: World) -> None:
    world.run(*DAYS[:2])
    world.book.calls.clear()
    report = world.run(*DAYS[:2])
    assert (report.state, report.code) == (State.THERE, 0)
    assert report.text == "clicks: 0 records added to topic clicks, 2 partitions there before"
    assert not world.called("reserve") and not world.called("spark")


def test_days_that_were_loaded_under_another_definition_are_told_of(world: World, source: str) -> None:
    world.run(DAYS[0])
    report = world.run(DAYS[0], flood=World(source, world.directory, value="user", key=None).flood)
    assert (report.state, report.code) == (State.INCOMPLETE, 1) and report.text.endswith("; NOT COMPLETE")
    assert report.problems == [
        "these partitions were loaded when the flood was declared differently, and stay as they are: take the change back, or "
        "declare a flood of another name into another topic. "
        f"partitions=`{DAYS[0]}` count=`1` differs=`key, value`"
    ], "the words of Dagster's check"


@pytest.mark.parametrize(
    ("error", "state", "sentence"),
    [
        (
            RetryError(Reason.STORE_UNAVAILABLE, "the store does not answer"), State.UNAVAILABLE,
            "the store does not answer. Brokers and gates are released, and nothing was added: run the same days again.",
        ),
        (
            InvalidError(Reason.INVALID_REQUEST, "key is no expression"), State.WRONG,
            "key is no expression. Brokers and gates are released, and nothing was added: correct it and run the same days again.",
        ),
        (
            KeyboardInterrupt(), State.INTERRUPTED,
            "cancelled while writing 2026-01-01. Brokers and gates are released, and nothing was added: run the same days again.",
        ),
    ],
    ids=["retry", "mistake", "interrupt"],
)  # fmt: skip
def test_an_end_before_its_time_says_what_is_left(world: World, error: BaseException, state: State, sentence: str) -> None:
    world.book.spark_error = error
    report = world.run()
    assert (report.state, report.code, report.text) == (state, CODES[state], sentence)
    assert report.to_json()["retry"] is (state is not State.WRONG)


def test_partitions_that_were_added_before_the_end_stay(world: World) -> None:
    world.book.spark_error, world.book.spark_error_from = KeyboardInterrupt(), DAYS[1]
    report = world.run()
    assert report.text.endswith("and 1 of 3 partitions were added and stay: run the same days again.")
    assert report.to_json()["partitions"] == [{"partition": DAYS[0], "rows": 10}]
    world.book.spark_error = None
    assert world.run().to_json()["added_rows"] == 20


def test_a_bug_gives_the_brokers_back_too(world: World) -> None:
    world.book.spark_error = ValueError("a bug")
    with pytest.raises(ValueError, match="a bug"):
        world.run()


def test_a_mistake_in_a_column_ends_the_plan(source: str, tmp_path: Path) -> None:
    world = World(source, tmp_path, key="usr")
    report = world.run()
    assert report.code == 2 and report.text.startswith("the source has no such column: did you mean `user`?"), report
    assert report.text.endswith("No brokers were asked for, and nothing was added: correct it and run the same days again.")
    assert world.book.calls == []


def test_a_reservation_that_is_refused_by_permission_is_asked_for_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def reserve(self: StandInCluster, reservation_id: str, brokers: int, ttl_ms: int, owner: str, lanes: int) -> None:
        asked.append(brokers)
        raise REFUSED

    monkeypatch.setattr(StandInCluster, "reserve", reserve)
    report = world.run()
    assert report.code == 2 and report.text.startswith("no permission. operation=`create`") and asked == [3]


def test_brokers_that_do_not_come_in_time(world: World, source: str, tmp_path: Path) -> None:
    world.book.fleet_max = 2
    assert world.run().code == 0, "the flood runs with what came"
    strict = World(source, tmp_path, brokers=Brokers(maximum=3, bytes_per_s=1, wait_ms=0, short="fail"))
    strict.book.fleet_max = 2
    report = strict.run()
    assert (report.state, report.code) == (State.UNAVAILABLE, 75)
    assert report.text.startswith(
        "the fleet did not reach the asked size. fleet=`headgate up` asked=`3` serving=`2` rule=`short: fail`"
    )
    assert strict.book.reservations == {}


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (RetryError(Reason.CLOSED, ""), State.UNAVAILABLE),
        (InvalidError(Reason.INVALID_CONFIG, ""), State.WRONG),
        (REFUSED, State.WRONG),
        (FatalError(Reason.UNSUPPORTED, ""), State.FAILED),
        (KeyboardInterrupt(), State.INTERRUPTED),
    ],
)
def test_the_state_after_an_error(error: HeadgateError, state: State) -> None:
    assert state_after(error) is state


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("2026-01-02", ["2026-01-02"]),
        ("2026-01-02..2026-01-04", ["2026-01-02", "2026-01-03", "2026-01-04"]),
        ("2026-02-09", ["2026-02-09"]),
        ("2025-12-31", "the flood begins later."),
        ("2025-12-31..2026-01-02", "the flood begins later."),
        ("2026-02-10", "the partition is not over yet."),
        ("2026-01-31..2026-03-31", "the partition is not over yet."),
        ("2026-01-04..2026-01-02", "the first partition is later than the last one."),
        ("yesterday", "expected a partition such as 2026-01-31"),
        ("2026-01-02..", "expected a partition such as 2026-01-31"),
        ("", "expected a partition such as 2026-01-31"),
    ],
)
def test_partitions_that_are_asked_for(asked: str, found: list[str] | str) -> None:
    if isinstance(found, list):
        assert keys_of(flood(), [asked, asked], NOW) == found
        return
    with pytest.raises(InvalidError) as caught:
        keys_of(flood(), [asked], NOW)
    assert caught.value.message.startswith(found) and f"value=`{asked}`" in caught.value.message


def test_a_flood_that_ended_and_hours_without_end() -> None:
    start = datetime(2020, 1, 1, tzinfo=UTC)
    ended = flood(partitions=Partitions(start=start, end=datetime(2020, 2, 1, tzinfo=UTC)))
    assert keys_of(ended, ["2020-01-31"], NOW) == ["2020-01-31"]
    with pytest.raises(InvalidError, match=r"the flood ends earlier\. .* end=`2020-02-01T00:00:00\+00:00`"):
        keys_of(ended, ["2020-01-31..2020-02-01"], NOW)
    hours = flood(partitions=Partitions(by="hour", start=start))
    with pytest.raises(InvalidError, match="at most 8784 partitions"):
        keys_of(hours, ["2020-01-01-00:00..2021-06-01-00:00"], NOW)
    with pytest.raises(InvalidError, match="at most 8784 partitions"):
        keys_of(hours, ["2020-01-01-00:00..2020-12-01-00:00", "2021-01-01-00:00..2021-12-01-00:00"], NOW)


def test_the_flood_of_a_file() -> None:
    one, other = flood(name="one"), flood(name="other")
    assert one_of([one], None) is one and one_of([one, other], "other") is other
    with pytest.raises(InvalidError, match=r"--flood NAME says which one is to run\. floods=`one, other`"):
        one_of([one, other], None)
    with pytest.raises(InvalidError, match=r"no such flood\. option=`--flood` value=`tow` floods=`one, other`"):
        one_of([one, other], "tow")


FILE = """floods:
  - {{name: clicks, topic: clicks, source: {source}, key: user, event_time: at, partitions: {{by: day, start: 2026-01-01}}}}
"""


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ((), 2, "--topic and --source describe a flood; or name a FILE with floods, and --partition"),
        (("f.yaml", "--topic", "a"), 2, "the file says this: leave the option out. option=`--topic`"),
        (("f.yaml", "--format", "csv"), 2, "option=`--format`"),
        (("--partition", DAYS[0], "--verify"), 2, "--partition and --flood choose from a file: leave the option out"),
        (("f.yaml",), 2, "say which partitions are to be loaded: --partition KEY or FIRST..LAST"),
        (("f.yaml", "--partition", DAYS[0], "--flood", "other"), 2, "no such flood. option=`--flood` value=`other`"),
        (("f.yaml", "--partition", "2025-01-01"), 2, "the flood begins later."),
        (("f.yaml", "--partition", DAYS[0], "--certificate", "f.yaml"), 2, "expected a directory that can be written to."),
        (("wrong.yaml", "--partition", DAYS[0]), 2, "wrong.yaml:2: floods[0].topik: expected no such field"),
        (("gone.yaml", "--partition", DAYS[0]), 2, "floods cannot be read: no such file or directory. file=`gone.yaml`"),
        (("f.yaml", "--partition", DAYS[0], "--cluster", "127.0.0.1:1"), 75, "no broker listens there"),
    ],
)  # fmt: skip
def test_what_the_command_refuses_at_once(
    arguments: tuple[str, ...], code: int, text: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.yaml").write_text(FILE.format(source=source))
    (tmp_path / "wrong.yaml").write_text(FILE.format(source=source).replace("topic:", "topik:"))
    assert headgate(["flood", "run", *arguments]) == code
    said = capsys.readouterr()
    assert text in said.err and said.out == ""
    if arguments and arguments[-1] != "--verify" and "--topic" not in arguments and "--format" not in arguments:
        assert headgate(["flood", "run", *arguments, "--json"]) == code
        found = json.loads(capsys.readouterr().out)
        assert (found["exit_code"], found["retry"]) == (code, code == 75) and text in found["message"]


def test_a_mistake_in_the_fleet_s_environment(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADGATE_FLEET", "nomad")
    (tmp_path / "f.yaml").write_text(FILE.format(source=source))
    assert headgate(["flood", "run", str(tmp_path / "f.yaml"), "--partition", DAYS[0]]) == 2
    assert "HEADGATE_FLEET=`nomad`" in capsys.readouterr().err
