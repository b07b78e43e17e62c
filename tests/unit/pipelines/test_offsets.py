"""Options of Spark's Kafka source, and their effect: no broker, no Spark.

Compared with the meanings in Spark's Structured Streaming + Kafka guide. A mismatch means that a job moved over from Kafka would
read other records than before.
"""

from __future__ import annotations

import datetime
from collections import namedtuple
from typing import Any

import pytest

from headgate.broker.client.types import Timestamp
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.offsets import Narrowed, Place, Topics, from_json, rate_limited, to_json
from headgate.pipelines.options import check_options, flag_option, number_option
from tests.support.errors import raises

KNOWN = {"a": 2, "ab": 3, "c": 1, "__consumer_offsets": 2}


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({"subscribe": "a"}, {"a": (0, 1)}),
        ({"subscribe": " c, a,a"}, {"a": (0, 1), "c": (0,)}),
        ({"subscribepattern": "a.*"}, {"a": (0, 1), "ab": (0, 1, 2)}),
        ({"subscribePattern": "b"}, {}),
        ({"subscribePattern": ".*"}, {"a": (0, 1), "ab": (0, 1, 2), "c": (0,)}),
        ({"subscribe": "__consumer_offsets"}, {"__consumer_offsets": (0, 1)}),
        ({"assign": '{"ab": [2, 0, 2]}'}, {"ab": (0, 2)}),
    ],
)
def test_topics(options: dict[str, str], chosen: dict[str, tuple[int, ...]]) -> None:
    assert Topics.of(options).choose(KNOWN, ["__consumer_offsets"]) == chosen


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"subscribe": "a", "assign": "{}"},
        {"subscribe": " , "},
        {"assign": "[1]"},
        {"assign": '{"a": [-1]}'},
        {"subscribePattern": "("},
    ],
)
def test_topics_that_cannot_be(options: dict[str, str]) -> None:
    with pytest.raises(InvalidError):
        Topics.of(options)


@pytest.mark.parametrize("options", [{"subscribe": "nope"}, {"assign": '{"a": [2]}'}])
def test_topics_that_are_not_there(options: dict[str, str]) -> None:
    with raises(InvalidError, Reason.UNKNOWN_TOPIC):
        Topics.of(options).choose(KNOWN)


def test_a_timestamp_wins_over_offsets_by_timestamp_and_these_over_offsets() -> None:
    offsets = {"startingoffsets": '{"a": {"0": 23, "1": -2, "2": -1}}'}
    place = Place.of(offsets, "starting", "latest")
    assert [place.at("a", number) for number in range(4)] == [23, "earliest", "latest", "latest"]
    by_time = offsets | {"startingOffsetsByTimestamp": '{"a": {"0": 1000}}'}
    place = Place.of(by_time, "starting", "earliest")
    assert (place.at("a", 0), place.at("a", 1), place.strict) == (Timestamp(1000), "earliest", True)
    place = Place.of(by_time | {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "latest"}, "starting", "earliest")
    assert (place.at("a", 0), place.at("b", 7), place.strict) == (Timestamp(5), Timestamp(5), False)
    assert Place.of({"endingOffsets": "latest"}, "ending", "earliest").at("a", 0) == "latest"


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "first"},
        {"startingOffsets": '{"a": 5}'},
        {"startingOffsets": '{"a": {"x": 5}}'},
        {"startingTimestamp": "yesterday"},
        {"startingOffsetsByTimestampStrategy": "guess"},
    ],
)
def test_places_that_cannot_be(options: dict[str, str]) -> None:
    with pytest.raises(InvalidError):
        Place.of(options, "starting", "earliest")


@pytest.mark.parametrize("name", ["Offsets", "OffsetsByTimestamp"])
@pytest.mark.parametrize("end", ["starting", "ending"])
def test_a_place_names_just_what_is_read(end: str, name: str) -> None:
    chosen = {"a": (0, 1)}
    Place.of({f"{end}{name}": '{"a": {"0": 5, "1": 5}}'}, end, "earliest").check(chosen)
    for text, where in (
        ('{"aa": {"0": 5}}', "topic=`aa` partition=`0`"),
        ('{"a": {"0": 5, "1": 5, "2": 5}}', "topic=`a` partition=`2`"),
    ):
        with pytest.raises(InvalidError, match=f"{end}{name} names a partition that is not read. {where}"):
            Place.of({f"{end}{name}": text}, end, "earliest").check(chosen)
    with pytest.raises(InvalidError, match=f"{end}{name} leaves out a partition that is read.*topic=`a` partition=`1`"):
        Place.of({f"{end}{name}": '{"a": {"0": 5}}'}, end, "earliest").check(chosen)


def test_options_that_nobody_has() -> None:
    check_options(["includeheaders", "COLUMNS", "path", "checkpointlocation"], ["includeHeaders", "columns"], "a read")
    with pytest.raises(InvalidError, match=r"a read has no such option\. option=`minoffsetspertrigger`"):
        check_options(["columns", "minoffsetspertrigger"], ["includeHeaders", "columns"], "a read")


def test_numbers_and_flags() -> None:
    assert number_option({"minpartitions": "3"}, "minPartitions") == 3
    assert flag_option({"includeHeaders": "TRUE"}, "includeHeaders", False)
    for text in ("0", "-1", "many"):
        with pytest.raises(InvalidError):
            number_option({"x": text}, "x")
    with pytest.raises(InvalidError):
        flag_option({"x": "yes"}, "x", False)


def test_a_checkpoint_is_read_back() -> None:
    offsets = {"b": {10: 5, 2: 7}, "a": {0: 0}}
    ids = {"a": "1f", "b": "2e"}
    assert to_json(offsets, ids) == {"a": {"0": 0, "id": "1f"}, "b": {"2": 7, "10": 5, "id": "2e"}}
    assert from_json(to_json(offsets, ids)) == (offsets, ids)
    assert from_json({"a": {"0": 0}}) == ({"a": {0: 0}}, {}), "as earlier versions wrote it"


@pytest.mark.parametrize(
    ("start", "end", "rows_max", "expected"),
    [
        ({0: 0, 1: 0}, {0: 10, 1: 10}, 100, {0: 10, 1: 10}),
        ({0: 0, 1: 0}, {0: 1000, 1: 1000}, 100, {0: 50, 1: 50}),
        ({0: 0, 1: 0}, {0: 900, 1: 100}, 100, {0: 90, 1: 10}),
        ({0: 5, 1: 7}, {0: 5, 1: 1007}, 10, {0: 5, 1: 17}),
        ({0: 0, 1: 0, 2: 0}, {0: 1, 1: 10**9, 2: 10**9}, 3, {0: 1, 1: 1, 2: 1}),
        ({0: 0, 1: 0}, {0: 10, 1: 10}, 1, {0: 1, 1: 1}),
        ({0: 0, 1: 0, 2: 0, 3: 0}, {0: 1, 1: 1, 2: 90, 3: 100}, 4, {0: 1, 1: 1, 2: 1, 3: 1}),
        ({0: 0, 1: 0, 2: 0, 3: 0, 4: 0}, {0: 1, 1: 1, 2: 1, 3: 90, 4: 100}, 6, {0: 1, 1: 1, 2: 1, 3: 1, 4: 2}),
    ],
)
def test_a_trigger_takes_no_more_than_it_may(start: Any, end: Any, rows_max: int, expected: Any) -> None:
    """Each partition with new records may exceed the limit by one; otherwise busy partitions would starve the others."""
    limited = rate_limited({"t": start}, {"t": end}, rows_max)["t"]
    assert sum(limited.values()) - sum(start.values()) <= max(rows_max, len(start))
    assert limited == expected


def test_filters_only_ever_narrow() -> None:
    def like(kind: str) -> Any:
        return namedtuple(kind, ("attribute", "value"))

    at = datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.UTC)
    us = 1_700_000_000_000_000
    filters = [
        like("IsNotNull")(("offset",), None),
        like("GreaterThan")(("offset",), 9),
        like("LessThanOrEqual")(("offset",), 20),
        like("In")(("partition",), (1, 2)),
        like("EqualTo")(("partition",), 2),
        like("GreaterThanOrEqual")(("timestamp",), at),
        like("LessThan")(("timestamp",), at + datetime.timedelta(seconds=1)),
        like("EqualTo")(("topic",), "a"),
        like("EqualTo")(("value",), b"x"),
        like("Not")(("offset",), None),
    ]
    narrowed = Narrowed().with_filters(filters)
    assert (narrowed.first, narrowed.last) == (10, 20)
    assert (narrowed.first_us, narrowed.last_us) == (us, us + 999_999)
    assert narrowed.reads("a", 2) and not narrowed.reads("a", 1) and not narrowed.reads("b", 2)
