"""Tells whether a curve grows after warm-up. Pure.

The first third of a run is warm-up. A curve grows if two measures of its rise from the middle third to the last one both exceed
its bound: the difference of the medians, and the Theil-Sen slope (the median of the slopes of all pairs of samples) over the
last two thirds. Neither moves for single peaks, and a saw-tooth with a period far below a third moves neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PAIRED_MAX = 600
"""Samples of which all pairs are compared; more are thinned out evenly."""
SAMPLES_MIN = 4
"""Fewest samples of a third."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The rise of a curve that counts as noise: a share of the middle third's median, or an amount in the curve's unit."""

    share: float
    amount: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Medians of two thirds of a curve, and its rise within a third of the run by two measures, in the curve's unit."""

    middle: float
    last: float
    slope_rise: float
    bound: float

    @property
    def grows(self) -> bool:
        return min(self.last - self.middle, self.slope_rise) > self.bound


def judge(times: Sequence[float], values: Sequence[float], bound: Bound) -> Judged:
    """Judge one curve.

    Args:
        times: of the samples, in seconds since the run's beginning; rising.

    Raises ValueError if a third of the run has fewer than `SAMPLES_MIN` samples.
    """
    at, value = np.asarray(times, float), np.asarray(values, float)
    third = at[-1] / 3 if len(at) else 0.0
    middle, last = value[(at >= third) & (at < 2 * third)], value[at >= 2 * third]
    if min(len(middle), len(last)) < SAMPLES_MIN:
        raise ValueError(f"too few samples to judge a curve. middle=`{len(middle)}` last=`{len(last)}` needed=`{SAMPLES_MIN}`")
    step = max(1, -(-int((at >= third).sum()) // PAIRED_MAX))
    paired_at, paired = at[at >= third][::step], value[at >= third][::step]
    first, second = np.triu_indices(len(paired), 1)
    apart = paired_at[second] - paired_at[first]
    slopes = (paired[second] - paired[first])[apart > 0] / apart[apart > 0]
    level = float(np.median(middle))
    return Judged(
        middle=level,
        last=float(np.median(last)),
        slope_rise=float(np.median(slopes)) * third,
        bound=max(bound.share * level, bound.amount),
    )
