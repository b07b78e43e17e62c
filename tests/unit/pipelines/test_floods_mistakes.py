"""Mistakes that a plan finds from metadata, before brokers and without Spark: each with its message.

A row is a change to a flood that fits its source, and a part of the message. A mismatch means that a mistake starts Spark and
brokers, and fails after minutes, or that a good flood is refused.
"""

# Rows of a table of messages are as long as the messages.
# ruff: noqa: E501

from __future__ import annotations

import json
import socket
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.broker.cli import floods as cli
from headgate.broker.cli.app import run
from headgate.broker.runtime.errors import InvalidError, Reason, RetryError
from headgate.pipelines.floods import measure, planning
from headgate.pipelines.floods import source_columns as columns_of_files
from headgate.pipelines.floods.job import job_of
from headgate.pipelines.floods.model import Flood, Source
from headgate.pipelines.floods.planning import make_plan, pending
from headgate.pipelines.floods.spans import gate_id, span_of
from headgate.pipelines.floods.standing import Held, Topic
from headgate.pipelines.identity import parts_of
from headgate.pipelines.late import Loaded
from headgate.pipelines.part import Part
from tests.support import floods
from tests.support.errors import raises

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
DAYS = ["2026-01-01", "2026-01-02"]
HEADER = {"header": "true"}


def write(path: Path, rows: int = 3, day: int = 1, **columns: Any) -> None:
    times = pa.array([datetime(2026, 1, day, 1, n % 60, tzinfo=UTC) for n in range(rows)], pa.timestamp("us", tz="UTC"))
    table = {
        "at": times, "user_id": ["u"] * rows, "amount": [1.5] * rows, "paid": [True] * rows, "tags": [["a"]] * rows,
        "place": [{"x": 1}] * rows, "its words": [["a"]] * rows, "größe": ["1"] * rows, "ns": times.cast(pa.timestamp("ns", tz="UTC")),
    }  # fmt: skip
    pq.write_table(pa.table({name: one for name, one in {**table, **columns}.items() if one is not None}), path)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Two days as Parquet, CSV and JSON."""
    for number, day in enumerate(DAYS, 1):
        write(tmp_path / f"{day}.parquet", day=number)
        (tmp_path / f"{day}.csv").write_text(f"at,user_id\n{day} 01:00:00,u\n")
        (tmp_path / f"{day}.semicolons").write_text(f"at;user_id\n{day} 01:00:00;u\n")
        (tmp_path / f"{day}.json").write_text(json.dumps({"at": f"{day} 01:00:00", "user_id": 7}) + "\n")
        (tmp_path / f"{day}.pretty").write_text(json.dumps([{"at": f"{day} 01:00:00"}], indent=1))
    return tmp_path


def flood(lake: Path, kind: str = "parquet", options: dict[str, str] | None = None, **changes: Any) -> Flood:
    format = {"semicolons": "csv", "pretty": "json"}.get(kind, kind)
    source = Source(path=f"{lake}/%Y-%m-%d.{kind}", format=format, options=options or {})
    return floods.flood(source=source, **{"key": "user_id", "value": "user_id", **changes})


def plan_of(one: Flood, topic: Topic | None = None, keys: list[str] = DAYS) -> Any:
    return make_plan(one, keys, topic, NOW, deadline=NOW)


@pytest.mark.parametrize(
    ("kind", "options", "changes", "message"),
    [
        ("parquet", {}, {"key": "userid"}, "the source has no such column: did you mean `user_id`? key=`userid` columns=`at, user_id, amount, paid, tags, place, its words, größe, ns` path="),
        ("parquet", {}, {"key": "`user id`"}, "did you mean `user_id`? key=``user id``"),
        ("parquet", {}, {"key": "tags"}, "key must be bytes or text: write `to_json(tags)`. key=`tags` type=`list`"),
        ("parquet", {}, {"value": "place"}, "value must be bytes or text: write `to_json(place)`. value=`place` type=`struct`"),
        ("parquet", {}, {"value": "amnt"}, "did you mean `amount`? value=`amnt`"),
        ("parquet", {}, {"event_time": "att"}, "did you mean `at`? event_time=`att`"),
        ("parquet", {}, {"event_time": "user_id"}, "event time must be timestamp or date: `to_timestamp(user_id)` makes one of text"),
        ("parquet", {}, {"event_time": "amount"}, "event time must be timestamp or date: `timestamp_millis(cast(amount as bigint))` makes one of ms since 1970"),
        ("parquet", {}, {"event_time": "ns"}, "Spark reads nanoseconds as numbers, of which `timestamp_micros(ns div 1000)` makes one."),
        ("parquet", {}, {"event_time": "now"}, "the source has no such column: a function needs its brackets, `now()`. event_time=`now`"),
        ("parquet", {}, {"where": "amount > 1 and user = 'x'"}, "`user` is no column of this source, and a function needs its brackets: `user()` is the same for every record. where="),
        ("parquet", {}, {"headers": "its words"}, "write `map('its words', to_json(`its words`))`."),
        ("parquet", {}, {"event_time": "größe"}, "`to_timestamp(`größe`)` makes one of text"),
        ("parquet", {}, {"event_time": "paid"}, "event time must be timestamp or date: name another column. event_time=`paid` type=`boolean`"),
        ("parquet", {}, {"where": "amount"}, "where must be a condition: write a comparison, such as `amount is not null`."),
        ("parquet", {}, {"where": "payed"}, "did you mean `paid`? where=`payed`"),
        ("parquet", {}, {"late": "user_id"}, "late must be a condition: write a comparison, such as `user_id is not null`."),
        ("parquet", {}, {"headers": "user_id"}, "headers must be a map, or an array of structs of a key and a value"),
        ("csv", HEADER, {}, "event time must be timestamp or date: `to_timestamp(at)` makes one of text"),
        ("csv", {}, {}, "the first line of the file seems to hold the names, which the option `header: \"true\"` reads. event_time=`at`"),
        ("csv", HEADER, {"event_time": "to_timestamp(at)", "key": "user"}, "did you mean `user_id`? key=`user`"),
        ("semicolons", HEADER, {}, "the file has one column only: its fields seem to be separated by another character, which the option `sep: ';'` names."),
        ("json", {}, {}, "event time must be timestamp or date: `to_timestamp(at)` makes one of text"),
        ("json", {}, {"event_time": "user_id"}, "`timestamp_millis(user_id)` makes one of ms since 1970"),
        ("pretty", {}, {}, "needs the option `multiLine: \"true\"`"),
        ("parquett", {}, {}, "the source is not there: did you mean `"),
    ],
)  # fmt: skip
def test_a_mistake_is_found_by_the_plan(
    lake: Path, kind: str, options: dict[str, str], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidError) as caught:
        plan_of(flood(lake, kind, options, **changes))
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("kind", "options", "changes", "notes"),
    [
        ("parquet", {}, {"where": "paid", "headers": None, "value": "amount"}, ()),
        ("parquet", {}, {"key": "USER_ID", "event_time": "AT"}, ()),
        ("parquet", {}, {"key": "GRÖßE", "value": "`größe`"}, ()),
        ("csv", {**HEADER, "inferSchema": "true"}, {}, ("not judged, for want of Spark: event_time",)),
    ],
)
def test_what_fits_is_planned(
    lake: Path, kind: str, options: dict[str, str], changes: dict[str, Any], notes: tuple[str, ...]
) -> None:
    made = plan_of(flood(lake, kind, options, **changes))
    assert [one.key for one in made.partitions] == DAYS and made.notes == notes


def test_nested_columns_of_lines_in_the_row_are_told(lake: Path, tmp_path: Path) -> None:
    assert plan_of(flood(lake, value="to_json(struct(*))")).notes == ()
    (tmp_path / f"{DAYS[0]}.json").write_text(json.dumps({"at": 5, "tags": ["a"], "place": {"x": 1}}) + "\n")
    one = flood(tmp_path, "json", event_time="timestamp_millis(at)", value="to_json(struct(*))", key="at")
    notes = plan_of(one, keys=DAYS[:1]).notes
    assert any(note.startswith("Spark moves the rows") and "nested columns (tags, place)" in note for note in notes)


def test_files_that_cannot_be_adopted_are_told_before_brokers_start(lake: Path) -> None:
    for changes, why in (
        ({"key": "amount"}, "the key is more than a column of bytes, text or whole numbers"),
        ({"key": None}, "rows without a key are spread by their content"),
        ({"value": "upper(user_id)"}, "an expression is no column"),
        ({"value": "user_id"}, "a column is used twice"),
    ):
        one = flood(lake, **{"value": "`größe`", "files": "link", **changes})
        with pytest.raises(InvalidError, match=f"cannot be adopted: {why}"):
            plan_of(one)
        assert any(
            note.startswith(f"the source's files are not adopted: {why}") for note in plan_of(replace(one, files="auto")).notes
        )
    with pytest.raises(InvalidError, match="in the order of the source only if its files are adopted"):
        plan_of(replace(one, files="auto", order="source"))
    (note,) = plan_of(flood(lake, value="`größe`", files="link")).notes
    assert note.startswith("the topic adopts the source's files")


def test_times_of_spark_default_writer_need_no_note(tmp_path: Path) -> None:
    table = pa.table({name: pa.array([datetime(2026, 1, 1, 1)], pa.timestamp("us")) for name in ("at", "sent")})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    assert plan_of(floods.flood(source=Source(path=str(tmp_path)), event_time="at"), keys=DAYS[:1]).notes == ()


@pytest.mark.parametrize(("kind", "text"), [("csv", "at,user\n2026,u\n"), ("json", '{"at": "2026", "user": "u"}\n')])
def test_columns_in_paths_are_known(tmp_path: Path, kind: str, text: str) -> None:
    place = tmp_path / DAYS[0] / "country=de"
    place.mkdir(parents=True)
    (place / f"a.{kind}").write_text(text)
    source = Source(path=f"{tmp_path}/%Y-%m-%d", format=kind, options=HEADER if kind == "csv" else {})
    one = floods.flood(source=source, key="country", event_time="to_timestamp(at)")
    assert plan_of(one, keys=DAYS[:1]).notes == ("not judged, for want of Spark: event_time",)
    with pytest.raises(InvalidError, match="did you mean `country`"):
        plan_of(replace(one, key="county"), keys=DAYS[:1])


def test_what_only_spark_can_judge_is_told(lake: Path) -> None:
    made = plan_of(flood(lake, event_time="to_timestamp(at)", key="concat(user_id, 'x')"))
    assert made.notes == ("not judged, for want of Spark: event_time, key",)


def test_columns_that_change_between_days_are_told(lake: Path) -> None:
    write(lake / f"{DAYS[1]}.parquet", day=2, amount=[1, 2, 3], more=[1, 2, 3], tags=None)
    (note,) = plan_of(flood(lake)).notes
    assert note.startswith("the columns change between `") and note.endswith(
        ".parquet`: +more, -tags, amount: fractional number to number"
    )
    write(lake / f"{DAYS[1]}.parquet", day=2, user_id=None)
    with pytest.raises(InvalidError, match=f"no such column.*{DAYS[1]}.parquet"):
        plan_of(flood(lake))


def test_a_day_without_rows_and_a_day_without_source(lake: Path) -> None:
    write(lake / f"{DAYS[1]}.parquet", rows=0)
    made = make_plan(flood(lake), [*DAYS, "2026-01-03"], None, NOW, deadline=NOW, skip_missing=True)
    assert made.notes == (f"without rows, so nothing is added for them: {DAYS[1]}",)
    assert made.left_out == (("2026-01-03", "the source is not there"),) and made.rows == 3


def test_a_source_that_changes_while_it_is_planned(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = columns_of_files.of_parquet

    def then_more(*arguments: Any) -> Any:
        write(lake / f"{DAYS[0]}.parquet", rows=30)
        return usual(*arguments)

    monkeypatch.setattr(measure, "of_parquet", then_more)
    with pytest.raises(RetryError, match=f"the source changed while it was planned.*{DAYS[0]}.parquet"):
        plan_of(flood(lake))


# -- the topic


def topic(*gates: Held, live: int = 0, room: int = 0) -> Topic:
    return Topic(partitions=1, live=live, room=room, gates=gates)


def gate(one: Flood, key: str, rows: int = 3) -> Held:
    span = span_of(one.partitions, key)
    return Held(id=gate_id(one, key), state="filled", rows=rows, definition=parts_of(job_of(one, span, "", 1).definition()))


def test_the_plan_says_where_history_will_stand(lake: Path) -> None:
    one = flood(lake)
    assert plan_of(one).stands == ("the history stands first, and live records behind it: the flood creates the topic",)
    (said,) = plan_of(one, topic(live=1234)).stands
    assert said.startswith(
        "about 1,234 live records are in the topic and stay before the history; only a topic that was created with"
    )
    assert "`place: front` puts it before them" in plan_of(one, topic(live=1, room=9)).stands[0]
    said = plan_of(one, topic(gate(one, DAYS[1]))).stands[1]
    assert said.startswith(f"later days are in the topic and stand before it ({DAYS[1]}): event time goes back at {DAYS[0]}.")
    front = replace(one, place="front")
    said = plan_of(front, topic(gate(front, DAYS[0]), room=9)).stands[1]
    assert said.startswith(f"days before {DAYS[1]} are in the topic and will stand behind it ({DAYS[0]})")


def test_a_flood_that_was_renamed_is_refused(lake: Path) -> None:
    one = flood(lake)
    with pytest.raises(InvalidError, match=f"was the flood renamed.*gates=`{DAYS[0]}: clicks.{DAYS[0]}` count=`1`"):
        plan_of(replace(one, name="visits"), topic(gate(one, DAYS[0])))
    assert plan_of(one, topic(gate(one, DAYS[0]))).left_out == ((DAYS[0], "in the topic already"),)
    assert plan_of(replace(one, name="visits", where="paid"), topic(gate(one, DAYS[0]))).rows == 6


def test_an_open_gate_of_a_killed_run_is_taken_up_by_the_next_run(lake: Path) -> None:
    """It is the partition's own gate, not one of another flood's name."""
    one = flood(lake)
    left = replace(gate(one, DAYS[0]), state="open")
    assert plan_of(one, topic(left)).rows == 6
    with pytest.raises(InvalidError, match="was the flood renamed"):
        plan_of(replace(one, name="visits"), topic(left))


def test_a_topic_with_other_keys_is_told(lake: Path) -> None:
    other = replace(flood(lake), name="orders", key="amount", where="paid")
    (note,) = plan_of(flood(lake), topic(gate(other, DAYS[0]))).notes
    assert (
        note.startswith("the topic has history of other floods, whose keys are defined in another way")
        and "floods=`orders`" in note
    )


def test_rows_that_came_late_are_planned_once(lake: Path) -> None:
    one = flood(lake, late="user_id = 'x'")
    whole = topic(gate(one, DAYS[0], rows=3), gate(one, DAYS[1], rows=3))
    assert pending(one, DAYS, whole, NOW) == []
    less = topic(gate(one, DAYS[0], rows=1), gate(one, DAYS[1], rows=3))
    (span,) = pending(one, DAYS, less, NOW)
    assert (span.key, span.late, span.loaded) == (DAYS[0], True, 1)
    job = job_of(one, span, "", 1)
    assert job.flood_id == gate_id(one, DAYS[0], late=True) != gate_id(one, DAYS[0])
    whole_day = job_of(one, span_of(one.partitions, DAYS[0]), "", 1).part
    assert job.part is not None and job.part.conditions == ("user_id = 'x'",)
    assert whole_day is not None and job.late_behind == Loaded(whole_day, 1)
    assert plan_of(one, less).rows == 2
    late = replace(gate(one, DAYS[0], rows=2), id=job.flood_id)
    assert pending(one, DAYS, replace(less, gates=(*less.gates, late)), NOW) == []


def test_rows_belong_to_their_path(lake: Path) -> None:
    """The file of the first day has rows of the second one."""
    write(lake / f"{DAYS[0]}.parquet", day=2)
    assert [one.rows for one in plan_of(flood(lake)).partitions] == [0, 3]
    made = plan_of(flood(lake, partition_by="path"))
    assert [(one.rows, one.exact) for one in made.partitions] == [(3, True), (3, True)] and made.notes == ()
    one = flood(lake, partition_by="path", where="paid")
    assert job_of(one, span_of(one.partitions, DAYS[0]), "", 1).part == Part(conditions=("paid",))


# -- the command line


def test_check_tells_mistakes_without_a_cluster(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = lake / "floods.yaml"
    declared = f"""floods:
  - name: clicks
    topic: clicks
    source: {lake}/%Y-%m-%d.parquet
    key: userid
    event_time: at
    partitions: {{start: 2026-01-01, end: 2026-01-03}}
"""
    file.write_text(declared)
    assert run(["flood", "check", str(file)]) == 1
    shown = capsys.readouterr()
    assert "did you mean `user_id`? key=`userid`" in shown.err and "no" in shown.out
    file.write_text(declared.replace("userid", "user_id"))
    assert run(["flood", "check", str(file), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["flood"], row["partitions"], row["problem"]) == ("clicks", DAYS, None)
    file.write_text(declared.replace("key:", "kee:"))
    assert run(["flood", "check", str(file)]) == 1
    assert "floods.yaml:5: floods[0].kee: expected no such field (did you mean `key`?)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("there", "looked_at"),
    [
        (["2026-01-01"], ["2026-01-01"]),
        (["2026-01-01", "2026-01-02", "2026-03-31"], ["2026-01-01", "2026-01-02", "2026-03-31"]),
        (["2026-02-14"], ["2026-02-14"]),
        ([], ["2026-03-31"]),
    ],
)
def test_check_looks_at_days_that_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], there: list[str], looked_at: list[str]
) -> None:
    """Of 90 days; the newest one may not be there yet, or be empty."""
    for day in there:
        (tmp_path / day).mkdir()
        write(tmp_path / day / "a.parquet")
    (tmp_path / "2026-03-30").mkdir()
    (tmp_path / "2026-03-30" / "_SUCCESS").touch()
    file = tmp_path / "floods.yaml"
    file.write_text(
        f"floods:\n- {{name: clicks, topic: clicks, source: '{tmp_path}/%Y-%m-%d', event_time: at, key: user_id, "
        "partitions: {start: 2026-01-01, end: 2026-04-01}}\n"
    )
    looked_at = looked_at if there else ["2026-03-30"]
    assert run(["flood", "check", str(file), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["partitions"] == looked_at and row["problem"] is None
    if there:
        write(tmp_path / there[0] / "a.parquet", user_id=None)
        assert run(["flood", "check", str(file)]) == 1
        assert "no such column. key=`user_id`" in capsys.readouterr().err


def test_check_looks_at_a_bounded_number_of_days(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = [f"2026-01-{day:02}" for day in range(1, 32)]
    for day in keys:
        write(tmp_path / f"{day}.parquet")
    file = tmp_path / "floods.yaml"
    file.write_text(
        f"floods:\n- {{name: clicks, topic: clicks, source: '{tmp_path}/%Y-%m-%d.parquet', event_time: at, key: user_id, "
        "partitions: {start: 2026-01-01, end: 2026-02-01}}\n"
    )
    assert run(["flood", "check", str(file), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert len(row["partitions"]) == cli.SAMPLE_MAX and {keys[0], keys[-1], keys[15]} <= set(row["partitions"])


def test_days_that_do_not_fit_into_one_run_are_a_mistake(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = floods.flood(source=Source(path=f"{lake}/%Y-%m-%d.parquet", format="parquet", options={}), key="user_id")
    monkeypatch.setattr(planning, "OPEN_GATES_MAX", 1)
    with raises(InvalidError, Reason.POLICY_VIOLATION, r"at most 1 partitions that have rows: run 2026-01-01\.\.2026-01-01 first"):
        plan_of(one)
    assert any(
        "run 2026-01-01..2026-01-01 first" in note
        for note in make_plan(one, DAYS, None, NOW, deadline=NOW, skip_missing=True).notes
    )


def test_an_empty_day_says_nothing_about_order(tmp_path: Path) -> None:
    (tmp_path / DAYS[0]).mkdir()
    (tmp_path / DAYS[0] / "_SUCCESS").touch()
    one = floods.flood(source=Source(path=f"{tmp_path}/%Y-%m-%d", format="parquet", options={}), key="user_id")
    assert plan_of(one, keys=DAYS[:1]).stands == ("nothing is added",)


def test_a_day_that_is_empty_is_planned_with_no_rows_and_a_typo_is_found(tmp_path: Path) -> None:
    for day in DAYS:
        (tmp_path / day).mkdir()
    write(tmp_path / DAYS[0] / "part-0.parquet")
    (tmp_path / DAYS[0] / "below").mkdir()
    write(tmp_path / DAYS[0] / "below" / "part-1.parquet")
    one = floods.flood(source=Source(path=f"{tmp_path}/%Y-%m-%d", format="parquet", options={}), key="user_id")
    for name in ("_SUCCESS", ".part-0.crc", "part-0.parquet"):
        (tmp_path / DAYS[1] / name).touch()
        made = plan_of(one)
        assert [(size.rows, size.exact) for size in made.partitions] == [(3, True), (0, True)]
        assert made.notes[0].startswith("files are left out") and f"directories=`{tmp_path}/{DAYS[0]}/below`" in made.notes[0]
        assert made.notes[1:2] == (f"without rows, so nothing is added for them: {DAYS[1]}",)
    recursive = replace(one, source=replace(one.source, options={"recursiveFileLookup": "true"}))
    assert [size.rows for size in plan_of(recursive).partitions] == [6, 0]
    (tmp_path / DAYS[0] / "part-0.parquet").unlink()
    with pytest.raises(InvalidError, match=r"all files lie in directories below the path.*recursiveFileLookup"):
        plan_of(one)
    with pytest.raises(InvalidError, match=rf"the source is not there: did you mean `{tmp_path}/{DAYS[0]}`\? flood="):
        plan_of(replace(one, source=replace(one.source, path=f"{tmp_path}/%Y_%m-%d")))
    (tmp_path / DAYS[0]).rename(tmp_path / "elsewhere")
    with pytest.raises(InvalidError, match=r"the source is not there, but files of other times are beside it: .* empty directory"):
        plan_of(one)


def test_a_cluster_that_falls_silent_ends_the_command_with_one_line(
    lake: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port that begins HTTP/2 as a broker does, and then says nothing more."""
    file = lake / "floods.yaml"
    file.write_text(
        "floods:\n- {name: clicks, topic: clicks, source: /lake, event_time: at, partitions: {start: 2026-01-01, end: 2026-01-03}}\n"
    )
    monkeypatch.setattr(cli, "CALL_MS", 200)

    def begin() -> None:
        with ExitStack() as held, suppress(OSError):
            while True:
                held.enter_context(server.accept()[0]).sendall(b"\0\0\0\4\0\0\0\0\0")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = Thread(target=begin)
        thread.start()
        code = run(["flood", "list", str(file), "--cluster", f"127.0.0.1:{server.getsockname()[1]}"])
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    (line,) = capsys.readouterr().err.splitlines()
    assert code == 1
    assert "broker did not answer in time" in line
