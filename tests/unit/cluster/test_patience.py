"""The limit for the answers of far brokers. A mismatch: every attempt at a far broker ends just before its answer comes."""

import pytest

from headgate.broker.cluster.patience import LONGEST_S, Patience, Patiences


@pytest.mark.parametrize(("took_s", "attempts"), [(0.0, 1), (4.9, 1), (10.0, 2), (30.0, 3), (LONGEST_S, 3)])
def test_a_broker_at_any_distance_is_reached_after_some_attempts(took_s: float, attempts: int) -> None:
    patience, made = Patience(5.0), 1
    while took_s > patience.limit_s:
        patience.ran_out()
        made += 1
    assert made == attempts
    patience.answered(took_s)
    assert patience.limit_s == min(max(5.0, 2 * took_s), LONGEST_S)


def test_a_broker_that_was_replaced_is_forgotten() -> None:
    patiences = Patiences(2.0)
    patiences.of("a", []).ran_out()
    assert patiences.of("a", []).limit_s == 6.0
    patiences.of("b", ["a", "b"])
    assert patiences.of("a", []).limit_s == 6.0
    patiences.of("c", ["b", "c"])
    assert patiences.of("a", []).limit_s == 2.0
