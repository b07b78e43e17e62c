"""An engine takes exactly those batches from producers that `log.batch.check` accepts, whatever a batch's header says.

The engine tests one condition of an ordinary batch; all others go through `check`, which has the rules. The test corrupts each
byte of the header in turn, and adapts the CRC if it covers the byte. Compared: the answers of the engine and of `check`. A
mismatch means that the engine stores a batch that the rules forbid, or refuses a valid one.
"""

from __future__ import annotations

import pytest

from headgate.broker.log.batch import HEADER_BYTES, check, crc_matches, parse, stamp_crc
from headgate.broker.runtime.errors import InvalidError, Reason, RetryError
from tests.support.batches import batch
from tests.unit.engine.world import NOW_MS, Machine

CRC_AT = range(17, 21)
TIMES_AT = range(27, 43)
"""First and greatest time: the engine has its own rules for them."""


def verdict(data: bytearray, size_bytes_max: int) -> Reason | None:
    try:
        check(parse(memoryview(data), 0, len(data)), memoryview(data), 0, len(data), size_bytes_max)
    except InvalidError as error:
        return error.reason
    return None


@pytest.mark.parametrize("idempotent", [False, True])
async def test_the_engine_takes_what_passes_the_check_and_nothing_else(machine: Machine, idempotent: bool) -> None:
    engine = (await machine.start()).engine
    topic = await engine.create_topic("t", 1, {})
    log = engine.partition(topic, 0)
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0} if idempotent else {}
    good = bytes(batch([b"a", b"b"], timestamp_ms=NOW_MS, **producer))
    seen: set[Reason | None] = set()
    for at in range(HEADER_BYTES):
        if at in TIMES_AT:
            continue
        for value in {0, 1, 2, 5, 0x10, 0x20, 0x7F, 0x80, 0xFF} - {good[at]}:
            data = bytearray(good)
            data[at] = value
            if at >= CRC_AT.stop:
                stamp_crc(data)
                assert crc_matches(data)
            expected = verdict(data, log.config.max_message_bytes)
            seen.add(expected)
            end = log.next_offset
            try:
                engine.append(log, memoryview(data), now_ms=NOW_MS)
            except (InvalidError, RetryError) as error:
                # A sequence that does not fit is judged by the producer state, after the check; so is a batch in a transaction.
                assert expected in (None, error.reason), (at, value)
                assert expected is not None or error.reason in (
                    Reason.OUT_OF_ORDER_SEQUENCE,
                    Reason.INVALID_PRODUCER_EPOCH,
                    Reason.UNKNOWN_PRODUCER_ID,
                    Reason.TRANSACTION_UNVERIFIED,
                ), value
                assert log.next_offset == end
            else:
                assert expected is None, (at, value, expected)
    assert seen >= {None, Reason.CORRUPT_MESSAGE, Reason.INVALID_RECORD, Reason.UNSUPPORTED_COMPRESSION}
    await engine.durable()
