"""The judge of the soak (`tests/soak/`), with curves made by hand: it finds growth, and calls nothing else growth.

A mismatch means that a run of hours proves nothing, or that it fails for noise.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from xml.etree import ElementTree

import pytest

from tests.soak.curves import CURVES, judge_all, svg
from tests.soak.judge import Bound, judge

BOUND = Bound(share=0.1, amount=5.0)
SAMPLES = 300
Shape = Callable[[float], float]
"""A curve's value at a share of the run."""

LEVEL: dict[str, Shape] = {
    "constant": lambda at: 100.0,
    "zero": lambda at: 0.0,
    "a warm-up, then level": lambda at: 100.0 * min(at / 0.3, 1.0),
    "a saw-tooth": lambda at: 100.0 + 80.0 * (at * 37 % 1),
    "falling": lambda at: 100.0 - 50.0 * at,
    "a peak in the last third": lambda at: 400.0 if 0.8 < at < 0.87 else 100.0,
    "a rise within the bound": lambda at: 100.0 + 20.0 * at,
}
GROWING: dict[str, Shape] = {
    "linear": lambda at: 100.0 + 80.0 * at,
    "linear after warm-up": lambda at: 100.0 + 90.0 * max(0.0, at - 0.3),
    "a saw-tooth that rises": lambda at: 100.0 + 60.0 * (at * 37 % 1) + 120.0 * at,
    "steps": lambda at: 100.0 + 10.0 * int(at * 12),
    "from nothing": lambda at: 60.0 * max(0.0, at - 0.4),
}


def grows(shape: Shape) -> bool:
    noise = random.Random(1)
    times = [number + noise.random() / 2 for number in range(SAMPLES)]
    return judge(times, [shape(at / times[-1]) + noise.gauss(0, 1) for at in times], BOUND).grows


@pytest.mark.parametrize("shape", LEVEL)
def test_a_level_curve_does_not_grow(shape: str) -> None:
    assert not grows(LEVEL[shape])


@pytest.mark.parametrize("shape", GROWING)
def test_growth_is_found(shape: str) -> None:
    assert grows(GROWING[shape])


def test_too_few_samples_are_no_verdict() -> None:
    with pytest.raises(ValueError, match="too few samples"):
        judge([1.0, 2.0, 3.0], [1.0, 1.0, 1.0], BOUND)
    with pytest.raises(ValueError, match="too few samples"):
        judge([], [], BOUND)


def test_the_picture_has_a_panel_for_each_curve() -> None:
    # As in a run, recovery is measured at other times than the rest.
    rows: list[dict[str, float | None]] = []
    for at in range(90):
        rows.append({"at_s": float(at), **{curve.name: 50.0 for curve in CURVES if curve.name != "recovery_s"}})
        if at % 5 == 0:
            rows.append({"at_s": float(at), "recovery_s": 0.5})
    judged = judge_all(rows)
    assert not any(one.grows for one in judged.values())
    picture = ElementTree.fromstring(svg(rows, judged, "a run"))
    assert len(picture.findall("{http://www.w3.org/2000/svg}polyline")) == len(CURVES)
