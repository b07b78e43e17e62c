"""Objects with the state of producers (`broker/engine/upkeep/recovery.py`).

Runs: encoding and decoding, with every bit flipped, with every length, and of an older release. A mismatch means that a broker
takes a damaged state for a good one, or refuses the objects of the release before it.
"""

from __future__ import annotations

import pytest

from headgate.broker.engine.partition.producers import decode_producers, encode_producers
from headgate.broker.log.producers import ProducerState
from headgate.broker.runtime.errors import CorruptError

STREAM = bytes(range(20))
OLD = bytes.fromhex(
    "48477072 01000000"  # magic, number of states
    "000102030405060708090a0b0c0d0e0f10111213"  # topic id, partition
    "2a00000000000000"  # known up to offset 42
)


def state() -> bytes:
    known = ProducerState()
    known.record(7, 0, 3, 2, 40, 1_700_000_000_000)
    return known.encode(42)


def test_what_was_encoded_is_decoded() -> None:
    ((stream, (offset, known)),) = decode_producers(encode_producers({STREAM: (42, state())})).items()
    assert (stream, offset, known.encode(42)) == (STREAM, 42, state())
    assert decode_producers(encode_producers({})) == {}


def test_objects_of_an_older_release_are_read() -> None:
    data = OLD + len(state()).to_bytes(4, "little") + state()
    ((stream, (offset, known)),) = decode_producers(data).items()
    assert (stream, offset, known.encode(42)) == (STREAM, 42, state())
    assert decode_producers(b"HGpr" + bytes(4)) == {}
    for size in range(len(data)):
        with pytest.raises(CorruptError):
            decode_producers(data[:size])


def test_every_flipped_bit_and_every_lost_byte_is_noticed() -> None:
    data = encode_producers({STREAM: (42, state())})
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptError):
            decode_producers(bytes(damaged))
    for size in range(len(data)):
        with pytest.raises(CorruptError):
            decode_producers(data[:size])
