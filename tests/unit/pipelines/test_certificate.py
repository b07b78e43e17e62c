"""Certificates of two sides that agree, and of every way in which they may differ. No Spark, no broker."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from headgate.broker.log.history_columns import SCHEMA
from headgate.broker.runtime.errors import InvalidError
from headgate.pipelines.certificate import Certificate, PartitionCertificate, Tally
from headgate.pipelines.tally import tally
from headgate.pipelines.verify import Seen

BLANK = PartitionCertificate(partition=0, base_offset=100, end_offset=104)


def rows(offsets: list[int], times: list[int], values: list[bytes]) -> pa.RecordBatch:
    headers = [[("h", b"1"), ("n", None)] if number % 2 else None for number in range(len(offsets))]
    arrays = [
        pa.array(offsets, SCHEMA.field("offset").type),
        pa.array(times, pa.int64()).cast(SCHEMA.field("timestamp").type),
        pa.array([b"k"] * len(offsets), pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(headers, SCHEMA.field("headers").type),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


GOOD = rows([100, 101, 102, 103], [-5, 7, 7, 9], [b"a", b"bb", b"", b"d"])


def look(*batches: pa.RecordBatch) -> PartitionCertificate:
    seen = Seen(100, 104)
    for batch in batches:
        seen.add(batch)
    return seen.certificate(replace(BLANK, source=tally(GOOD)))


def certificate(part: PartitionCertificate) -> Certificate:
    return Certificate(
        cluster="c", topic="t", flood_id="f", gate_id="f", place="now", partitions=(part,), seconds={"counting": 1.5}
    )


def test_two_sides_that_agree() -> None:
    one = certificate(look(GOOD.slice(0, 1), GOOD.slice(1, 0), GOOD.slice(1)))
    assert one.complete and one.verified and one.problems() == []
    assert one.source == one.in_topic == tally(GOOD)
    assert one.source is not None and one.source.data_bytes == 4 * 1 + 4 + 2 * 3
    assert (one.rows, one.gap_rows, one.duplicate_rows, one.disordered_rows) == (4, 0, 0, 0)
    assert (one.timestamp_min_ms, one.timestamp_max_ms) == (-5, 9)
    assert Certificate.from_json(one.to_json()) == one


def test_order_does_not_count_for_the_sum() -> None:
    turned = GOOD.take(pa.array([3, 1, 0, 2]))
    assert tally(turned) == tally(GOOD) == tally(GOOD.slice(0, 2)) + tally(GOOD.slice(2))


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        ([GOOD.slice(0, 3)], ["missing", "rows of the topic", "checksum"]),
        ([GOOD.slice(0, 2), GOOD.slice(3)], ["missing", "checksum"]),
        ([GOOD, GOOD.slice(3)], ["duplicate", "rows of the topic"]),
        ([rows([100, 101, 102, 103], [-5, 7, 7, 9], [b"a", b"bb", b"", b"D"])], ["checksum"]),
        ([rows([100, 101, 102, 103], [-5, 7, 9, 7], [b"a", b"bb", b"", b"d"])], ["out of time order", "checksum"]),
    ],
)
def test_sides_that_do_not_agree(batches: list[pa.RecordBatch], words: list[str]) -> None:
    one = certificate(look(*batches))
    assert not one.complete and not one.verified
    problems = " ".join(one.problems())
    assert all(word in problems for word in words), problems
    if "checksum" in words:
        # The text must have the certificate's own format, so that a search for it succeeds.
        assert one.to_dict()["in_topic"]["checksum"] in problems


def test_a_side_that_was_not_looked_at_proves_nothing() -> None:
    one = certificate(replace(BLANK, source=Tally(rows=4)))
    assert one.complete and not one.verified and one.in_topic is None and one.gap_rows is None
    assert not certificate(replace(BLANK, source=Tally(rows=5))).complete


def test_a_later_certificate_keeps_what_was_proved() -> None:
    looked = look(GOOD)
    proved = replace(certificate(looked), digest="d", keyless_rows=2, added_rows=4)
    again = replace(certificate(replace(BLANK, timestamp_min_ms=-5, timestamp_max_ms=9)), digest="d", already_filled=True)
    kept = again.with_proof_of(proved)
    assert kept.verified and kept.partitions == proved.partitions
    assert (kept.added_rows, kept.already_filled, kept.keyless_rows) == (0, True, 2)

    # The new reads of the topic count now, and are compared with the earlier counts of the source.
    lost = replace(looked, source=None, topic=tally(GOOD.slice(1)), gap_rows=1)
    problems = replace(again, partitions=(lost,)).with_proof_of(proved).problems()
    assert any("rows of the topic" in problem for problem in problems) and any("missing" in problem for problem in problems)


@pytest.mark.parametrize(
    "changed",
    [
        {"topic": "u"},
        {"gate_id": "g"},
        {"digest": "e"},
        {"partitions": (replace(BLANK, base_offset=99),)},
        {"partitions": (BLANK, replace(BLANK, partition=1))},
    ],
)
def test_another_gate_s_certificate_proves_nothing(changed: dict[str, Any]) -> None:
    again = replace(certificate(BLANK), digest="d")
    assert again.with_proof_of(replace(certificate(look(GOOD)), **{"digest": "d", **changed})) == again


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format_version": 2}', '{"format_version": 1, "partitions": [1]}'])
def test_what_is_no_certificate(text: str) -> None:
    with pytest.raises(InvalidError):
        Certificate.from_json(text)


@pytest.mark.parametrize(
    ("where", "name"),
    [((), "files"), (("partitions", 0), "end_offset"), (("partitions", 0), "gap_rows"), (("partitions", 0, "source"), "rows")],
)
def test_what_is_no_number(where: tuple[Any, ...], name: str) -> None:
    row = certificate(look(GOOD)).to_dict()
    inner = row
    for step in where:
        inner = inner[step]
    assert isinstance(inner[name], int)
    assert Certificate.from_json(json.dumps(row)) == certificate(look(GOOD))
    inner[name] = "7"
    with pytest.raises(InvalidError, match=f"not a certificate: {name} is no number"):
        Certificate.from_json(json.dumps(row))
