"""Floods from YAML: the parsed values, and the message for each mistake.

A row is a change to a good file and the one line that it must cause. A mismatch means that a user looks in the wrong place, or
that a mistake becomes a flood.
"""

# Rows of a table of messages are as long as the messages.
# ruff: noqa: E501

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.assets.definitions import DEFAULT_FILE, load
from headgate.broker.runtime.errors import InvalidError
from headgate.pipelines.floods.document import DocumentError
from headgate.pipelines.floods.model import Brokers, Flood
from headgate.pipelines.floods.parse import parse, parse_all

GOOD = """floods:
  - name: clicks
    topic: web.clicks
    source: {path: s3://lake/clicks/%Y-%m-%d-%H.json, format: json, options: {multiLine: "true"}}
    key: user_id
    event_time: clicked_at
    partitions: {by: hour, start: 2026-01-01T00:00, timezone: Europe/Berlin}
    schedule: {cron: "0 6 * * mon-fri", timezone: Europe/Berlin}
    lead_time: 15m
    deadline: 1h30m
    brokers: {min: 2, max: 5, bytes_per_s: 10MiB, wait: 90s, short: fail}
    place: front
"""

TEN_LINES = """floods:
  - name: clicks
    topic: clicks
    source: ./history/clicks
    key: user_id
    event_time: clicked_at
    partitions: {by: day, start: 2026-01-01}
    deadline: 2h
    brokers: {min: 1, max: 3}
"""


def problems(text: str) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        parse(text, "f.yaml")
    return [str(one) for one in caught.value.problems]


@pytest.mark.parametrize(
    "tagged",
    ["!!python/object/apply:os.system ['true']", "!!python/name:os.system x", "!secret x", "!!binary aGVsbG8=", "!!str clicks"],
)
def test_no_tag_of_yaml_is_used(tagged: str) -> None:
    assert problems(GOOD.replace("topic: web.clicks", f"topic: {tagged}")) == ["f.yaml:3: expected YAML: tags are not used here"]


def test_a_good_file() -> None:
    (flood,) = parse(GOOD, "f.yaml")
    assert (flood.topic, flood.source.format, flood.source.options) == ("web.clicks", "json", {"multiLine": "true"})
    assert flood.partitions.by == "hour" and flood.partitions.start.isoformat() == "2026-01-01T00:00:00+01:00"
    assert flood.occurrences.cron is not None and flood.occurrences.cron.text == "0 6 * * mon-fri"
    assert (flood.lead_time_ms, flood.deadline, flood.place) == (900_000, 5_400_000, "front")
    assert flood.brokers == Brokers(minimum=2, maximum=5, bytes_per_s=10 << 20, wait_ms=90_000, short="fail")


def test_ten_lines_are_enough() -> None:
    (flood,) = parse(TEN_LINES, "f.yaml")
    assert isinstance(flood, Flood) and flood.value == "to_json(struct(*))" and flood.verify


def test_several_floods_and_several_files(tmp_path: Path) -> None:
    second = GOOD.replace("name: clicks", "name: views").replace("topic: web.clicks", "topic: web.views")
    both = GOOD + second.removeprefix("floods:\n")
    assert [flood.name for flood in parse(both, "f.yaml")] == ["clicks", "views"]
    (tmp_path / "a.yaml").write_text(GOOD)
    (tmp_path / "b.yml").write_text(second)
    assert [flood.name for flood in load(str(tmp_path))] == ["clicks", "views"]
    assert [flood.name for flood in load(f"{tmp_path}/b.yml:{tmp_path}/a.yaml")] == ["views", "clicks"]
    assert [flood.name for flood in load(str(DEFAULT_FILE))] == ["clicks"]
    with pytest.raises(DocumentError) as caught:
        parse_all([(GOOD, "a.yaml"), (second + GOOD.removeprefix("floods:\n"), "b.yaml"), ("floods: []", "c.yaml")])
    assert [str(one) for one in caught.value.problems] == [
        "b.yaml:13: floods[1].name: expected a name of its own, found `clicks`, which a.yaml has too",
        "c.yaml:1: floods: expected at least one flood, found a list",
    ]
    with pytest.raises(InvalidError, match=r"floods cannot be read: no such file or directory\. .* file=`.*none.yaml`"):
        load(str(tmp_path / "none.yaml"))


def test_fixed_times_are_sorted_and_in_utc() -> None:
    text = GOOD.replace('{cron: "0 6 * * mon-fri", timezone: Europe/Berlin}', "{at: [2026-12-02, '2026-12-01T06:00:00+01:00']}")
    (flood,) = parse(text, "f.yaml")
    # A time without a zone is local where the partitions are, unless the schedule names a zone.
    assert flood.occurrences.at == (datetime(2026, 12, 1, 5, tzinfo=UTC), datetime(2026, 12, 1, 23, tzinfo=UTC))


@pytest.mark.parametrize(
    ("schedule", "cron", "zone"),
    [
        ('"0 6 * * *"', "0 6 * * *", "Europe/Berlin"),
        ('"@daily"', "0 0 * * *", "Europe/Berlin"),
        ('{cron: "@Weekly", timezone: UTC}', "0 0 * * 0", "UTC"),
    ],
)
def test_schedules_in_short(schedule: str, cron: str, zone: str) -> None:
    (flood,) = parse(GOOD.replace('{cron: "0 6 * * mon-fri", timezone: Europe/Berlin}', schedule), "f.yaml")
    assert flood.occurrences.cron is not None and flood.occurrences.cron.text == cron
    assert flood.occurrences.timezone == zone


def test_two_floods_with_the_same_rows() -> None:
    second = GOOD.removeprefix("floods:\n").replace("name: clicks", "name: views")
    said = "f.yaml:13: floods[1]: expected rows of its own, found those of flood `clicks`"
    (found,) = problems(GOOD + second)
    assert found.startswith(said)
    assert parse(GOOD + second + "    where: late\n", "f.yaml")
    ended = GOOD.replace("start: 2026-01-01T00:00", "start: 2025-01-01T00:00, end: 2026-01-01T00:00")
    assert parse(ended + second, "f.yaml")
    with pytest.raises(DocumentError, match=r"b.yaml:2: floods\[0\]: expected rows of its own"):
        parse_all([(GOOD, "a.yaml"), ("floods:\n" + second, "b.yaml")])


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("name: clicks", "name: web clicks", "2: floods[0].name: expected letters, digits and `_`, a letter first, at most 63, found `web clicks`"),
        ("name: clicks", f"name: {'c' * 50}\n    late: arrived", f"2: floods[0].name: expected at most 49 characters, because `late` makes the names of gates longer, found `{'c' * 50}`"),
        ("    topic: web.clicks\n", "", "2: floods[0].topic: expected the topic's name, found nothing"),
        ("topic: web.clicks", "topic: a/b", "3: floods[0].topic: expected a Kafka topic name: letters, digits, `.`, `_`, `-`, at most 249, found `a/b`"),
        ("topic: web.clicks", "topic: [a]", "3: floods[0].topic: expected the topic's name, found a list"),
        ("topic: web.clicks", "topics: web.clicks", "3: floods[0].topics: expected no such field (did you mean `topic`?)"),
        ("key: user_id", "kye: user_id", "5: floods[0].kye: expected no such field (did you mean `key`?)"),
        ("key: user_id", "key: user_id\n    key: a", "6: floods[0].key: expected once, found twice"),
        ("path: s3", "pfad: s3", "4: floods[0].source.path: expected where the data is, found nothing"),
        ("options: {multi", "options: {x: [1], multi", "4: floods[0].source.options: expected a mapping of names to texts, found a mapping"),
        ("by: hour", "by: day", "4: floods[0].source.path: expected a path without `%H`, because the partitions are days, found `s3://lake/clicks/%Y-%m-%d-%H.json`"),
        ("by: hour", "by: week", "7: floods[0].partitions.by: expected `day` or `hour`, found `week`"),
        ("by: hour", "by: day, end: 2025-01-01", "7: floods[0].partitions.end: expected a time after 2026-01-01T00:00:00+01:00, found `2025-01-01`"),
        ("start: 2026-01-01T00:00", "start: tomorrow", "7: floods[0].partitions.start: expected the first day, such as `2013-01-01`, found `tomorrow`"),
        ("start: 2026-01-01T00:00", "start: 2026-01-01T00:30", "7: floods[0].partitions.start: expected a whole hour, found `2026-01-01T00:30`"),
        ("timezone: Europe/Berlin}\n    sch", "timezone: Mars}\n    sch", "7: floods[0].partitions.timezone: expected a time zone such as `Europe/Berlin`, found `Mars`"),
        ("0 6 * * mon-fri", "0 25 * * *", "8: floods[0].schedule.cron: expected hour between 0 and 23 (`*`, `5`, `1-5`, `*/15`, lists with commas), found `0 25 * * *`"),
        ("0 6 * * mon-fri", "@reboot", "8: floods[0].schedule.cron: expected five fields (minute hour day month weekday), such as `0 6 * * *`, or `@hourly`, `@daily`, `@weekly`, found `@reboot`"),
        ('cron: "0 6 * * mon-fri"', "at: [soon]", "8: floods[0].schedule.at[0]: expected a time such as `2026-12-01T06:00:00Z`, found `soon`"),
        ('cron: "0 6 * * mon-fri", ', "", "8: floods[0].schedule: expected `cron` or `at`, found neither"),
        ("lead_time: 15m", "lead_time: 15 minutes", "9: floods[0].lead_time: expected a duration such as `90s`, `15m` or `2h`, found `15 minutes`"),
        ("lead_time: 15m", "lead_time: 30d", "9: floods[0].lead_time: expected a duration between 0 s and 518400 s, found `30d`"),
        ("deadline: 1h30m", "deadline: never", "10: floods[0].deadline: expected a duration such as `2h`, or a time such as `2026-12-01T08:00:00Z`, found `never`"),
        ("deadline: 1h30m", "deadline: 999999999d", "10: floods[0].deadline: expected a duration between 0 s and 31622400 s, found `999999999d`"),
        ("deadline: 1h30m", "deadline: 1s", "10: floods[0].deadline: expected at least `1m`, because Spark and the brokers take a part of it to start, found `1s`"),
        ("deadline: 1h30m", "deadline: 2026-03-29T02:30", "10: floods[0].deadline: expected a duration such as `2h`, or a time such as `2026-12-01T08:00:00Z`, found `2026-03-29T02:30`"),
        ('{cron: "0 6 * * mon-fri", timezone: Europe/Berlin}', "daily", "8: floods[0].schedule: expected five fields (minute hour day month weekday), such as `0 6 * * *`, or `@hourly`, `@daily`, `@weekly`, found `daily`"),
        ("%Y-%m-%d-%H.json, format: json", "%Y-%m-%d.json, format: json}\n    partition_by: path #", "4: floods[0].source: expected a path that names each hour, such as `/lake/clicks/%Y-%m-%d/%H`, because `partition_by` is `path`, found `s3://lake/clicks/%Y-%m-%d.json`"),
        ("place: front", "partition_by: arrival", "12: floods[0].partition_by: expected `event_time` or `path`, found `arrival`"),
        ("min: 2", "min: 0", "11: floods[0].brokers.min: expected a whole number between 1 and 64, found `0`"),
        ("max: 5", "max: 1", "11: floods[0].brokers.max: expected at least `min`, which is 2, found `1`"),
        ("max: 5", "max: 999999999999999999999", "11: floods[0].brokers.max: expected a whole number between 1 and 64, found `999999999999999999999`"),
        ("10MiB", "10 parsec", "11: floods[0].brokers.bytes_per_s: expected a size such as `64MiB`, found `10 parsec`"),
        ("short: fail", "short: cry", "11: floods[0].brokers.short: expected `run` or `fail`, found `cry`"),
        ("place: front", "place: back", "12: floods[0].place: expected `now` or `front`, found `back`"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_line_its_field_and_what_was_expected(old: str, new: str, problem: str) -> None:
    assert old in GOOD
    found = problems(GOOD.replace(old, new))
    # A misspelt name is reported twice: as a missing field and as an unknown one.
    assert f"f.yaml:{problem}" in found and len({line.split(":")[1] for line in found}) <= 2 >= len(found)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "1: expected `floods:` and a list, found an empty file"),
        ("floods:", "1: floods: expected a list of floods, found nothing"),
        ("floods: []", "1: floods: expected at least one flood, found a list"),
        ("floods: {}", "1: floods: expected a list of floods, found a mapping"),
        ("- a", "1: expected a mapping of fields, found a list"),
        ("floods:\n - [", "2: expected YAML: expected the node content, but found '<stream end>'"),
        ("floods:\n\t- name: a", "2: expected YAML: found character '\\t' that cannot start any token (indent with spaces, not with tabs)"),
        ("floods:\n - cron: */5 * * * *", "2: expected YAML: expected alphabetic or numeric character, but found '/' (is it a text? Put it in quotes)"),
        ("floods:\n - cron: @daily", "2: expected YAML: found character '@' that cannot start any token (is it a text? Put it in quotes)"),
        ("floods:\n - value: concat(a, ': ')", "2: expected YAML: mapping values are not allowed here (is it a text? Put it in quotes)"),
        ("floods: &a [*a]", "1: expected YAML: aliases are not used here"),
        ("floods: " + "[" * 50 + "]" * 50, "1: expected YAML: nested deeper than 20 levels"),
        ("floods:\n - a: \x00", "1: expected YAML: unacceptable character #x0000: special characters are not allowed\n  in \"<unicode string>\", position 14"),
    ],
)  # fmt: skip
def test_what_is_no_list_of_floods(text: str, problem: str) -> None:
    assert problems(text) == [f"f.yaml:{problem}"]


def test_all_mistakes_are_told_at_once() -> None:
    found = problems(GOOD.replace("topic: web.clicks", "topic: a b").replace("place: front", "place: back") + "  - name: x\n")
    assert [line.split(":")[1] for line in found] == ["3", "12", "13", "13", "13", "13"]


def test_two_floods_of_one_name() -> None:
    found = problems(GOOD + GOOD.removeprefix("floods:\n"))
    assert found == ["f.yaml:13: floods[1].name: expected a name of its own, found `clicks`, which floods[0] has too"]


@settings(deadline=None)
@given(st.text(alphabet=st.sampled_from("floods: -[]{}\n\"'&*!|>%@`a1,#?name topic"), max_size=200))
def test_any_text_gives_floods_or_problems(text: str) -> None:
    try:
        parse(text, "f.yaml")
    except DocumentError as error:
        assert error.problems and all(one.line >= 1 for one in error.problems)
