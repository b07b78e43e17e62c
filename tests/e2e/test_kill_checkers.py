"""The checkers of the kill tests can fail: each kind of wrong history is made by hand and must be caught.

Compared: the complaint with the injected damage. A missing complaint means that a green kill test proves nothing.
"""

from __future__ import annotations

import pytest

from tests.support.history import Sent, check_log, check_reader, check_writer, gaps, parse, payload

COUNT = 20


def right(*, idempotent: bool = True) -> tuple[Sent, dict[int, list[tuple[int, bytes]]]]:
    """A correct history: one writer, one partition, every record acked at its offset."""
    sent = Sent(name="writer", number=1, idempotent=idempotent, sent={0: COUNT}, acks={0: [(n, n) for n in range(COUNT)]})
    return sent, {0: [(n, payload(1, 0, n)) for n in range(COUNT)]}


def complaints(sent: Sent, log: dict[int, list[tuple[int, bytes]]]) -> str:
    return "\n".join(check_log(log) + check_writer(sent, log))


def test_a_right_history_passes() -> None:
    sent, log = right()
    assert complaints(sent, log) == ""
    assert check_reader("reader", {0: list(log[0])}, log) == []
    assert gaps(log) == 0


def test_payloads_tell_who_wrote_them() -> None:
    assert parse(payload(3, 7, 99)) == (3, 7, 99)
    spoiled = bytearray(payload(3, 7, 99))
    spoiled[-1] ^= 1
    with pytest.raises(ValueError, match="changed"):
        parse(bytes(spoiled))
    with pytest.raises(ValueError, match="changed"):
        parse(payload(3, 7, 99)[:-1])
    with pytest.raises(ValueError, match="too short"):
        parse(b"")


def test_a_lost_record_is_caught() -> None:
    sent, log = right()
    del log[0][7]
    assert "lost" in complaints(sent, log)
    assert gaps(log) == 1


def test_a_lost_tail_is_caught() -> None:
    sent, log = right()
    del log[0][-1]
    assert "lost" in complaints(sent, log)


def test_a_reused_offset_is_caught() -> None:
    sent, log = right()
    log[0][7] = (7, payload(2, 0, 0))
    assert "another record stands at an acked offset" in complaints(sent, log)


def test_an_offset_that_goes_back_is_caught() -> None:
    sent, log = right()
    log[0].append((3, payload(1, 0, 3)))
    assert "offsets do not grow" in complaints(sent, log)


def test_a_changed_byte_is_caught() -> None:
    sent, log = right()
    log[0][7] = (7, log[0][7][1][:-1] + b"!")
    assert "changed" in complaints(sent, log)
    assert "another record" in complaints(sent, log)


def test_a_swap_is_caught() -> None:
    sent, log = right()
    log[0][7], log[0][8] = (7, log[0][8][1]), (8, log[0][7][1])
    assert "not in send order" in complaints(sent, log)
    sent.acks[0][7], sent.acks[0][8] = (8, 7), (7, 8)  # also if the acks agree with it
    assert "acked offsets are not in send order" in complaints(sent, log)


def test_a_foreign_partition_is_caught() -> None:
    sent, log = right()
    log[1] = [(0, payload(1, 0, 5))]
    assert "foreign partition" in complaints(sent, log)


def test_repetitions_are_caught_for_idempotent_writers_only() -> None:
    for idempotent in (True, False):
        sent, log = right(idempotent=idempotent)
        log[0].append((COUNT, payload(1, 0, COUNT - 1)))
        assert ("repeated" in complaints(sent, log)) is idempotent


def test_records_from_nowhere_and_failures_are_caught() -> None:
    sent, log = right()
    log[0].append((COUNT, payload(1, 0, COUNT)))
    assert "never sent" in complaints(sent, log)
    sent.failed("message timed out")
    assert "message timed out" in complaints(sent, log)


@pytest.mark.parametrize("damage", ["missing", "extra", "other", "swapped", "nothing"])
def test_readers_that_saw_another_history_are_caught(damage: str) -> None:
    _, log = right()
    seen = {0: list(log[0])}
    if damage == "missing":
        del seen[0][5]
    elif damage == "extra":
        seen[0].append((COUNT, payload(2, 0, 0)))
    elif damage == "other":
        seen[0][5] = (5, payload(2, 0, 0))
    elif damage == "swapped":
        seen[0][5], seen[0][6] = seen[0][6], seen[0][5]
    else:
        seen = {}
    assert "another history" in "\n".join(check_reader("reader", seen, log))
