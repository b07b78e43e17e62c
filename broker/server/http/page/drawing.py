"""Positions of what the page draws: plain numbers for the templates. The page allows no styles in its elements, so bars and charts
are SVG with attributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headgate.broker.server.view import model

HUES = 8
"""Colours of brokers; a broker's colour is its id modulo this."""
STRIP_SEGMENTS_MAX = 24
"""Segments of one topic that a row draws, so that fifty rows stay small. The topic's own page lists more."""
WINDOWS_MAX = 32
"""Windows of one gate that are drawn."""
WIDTH = 1000.0
"""Width of strips and charts, in units of their own: they scale with the page."""
CHART_HEIGHT = 120.0
GAP = 4.0
FRESH_S = 20.0
"""A segment that a split, a merge or a move made within this time stands out."""


def hue(broker_id: int | None) -> str:
    """The class of a broker's colour."""
    return "none" if broker_id is None else f"h{broker_id % HUES}"


@dataclass(frozen=True, slots=True)
class Block:
    """One segment in the strip of a topic."""

    x: float
    width: float
    hue: str
    fresh: bool
    title: str


def strip(topic: model.Topic) -> list[Block]:
    """A topic's partitions from left to right, one block for each segment."""
    segments = topic.segments[:STRIP_SEGMENTS_MAX]
    end = segments[-1].end_partition if segments else 1
    unit = WIDTH / max(end, 1)
    gap = min(GAP, WIDTH / max(len(segments), 1) / 4)
    blocks: list[Block] = []
    for segment in segments:
        width = (segment.end_partition - segment.first_partition) * unit
        last = segment.end_partition - 1
        span = f"partition {last}" if segment.first_partition == last else f"partitions {segment.first_partition}-{last}"
        lead = "no lead" if segment.broker_id is None else f"broker {segment.broker_id}"
        fresh = segment.age_s is not None and segment.age_s < FRESH_S
        blocks.append(
            Block(
                round(segment.first_partition * unit + gap / 2, 1),
                round(max(width - gap, 1.0), 1),
                hue(segment.broker_id),
                fresh,
                f"{span}: {lead}",
            )
        )
    return blocks


@dataclass(frozen=True, slots=True)
class Tube:
    """One window of a gate, drawn as a tube that fills. Heights are parts of 100. `solid`: its files are uploaded."""

    partition: int
    height: int
    level: int
    solid: bool
    title: str


def tubes(gate: model.Gate, flood: model.Flood | None) -> list[Tube]:
    """The windows of a gate. The level of a window without files is estimated from what the flood's tasks have written."""
    windows = gate.windows[:WINDOWS_MAX]
    rows = [window.end_offset - window.base_offset for window in windows]
    most = max(rows, default=0) or 1
    written = 0.0
    if flood is not None and flood.rows_planned and not flood.ended:
        written = min(flood.rows_written / flood.rows_planned, 1.0)
    found: list[Tube] = []
    for shown, count in zip(windows, rows, strict=True):
        uploaded = bool(shown.files) or gate.state == "filled"
        height = max(round(100 * count / most), 6) if count else 0
        level = height if uploaded else round(height * written)
        what = f"{shown.files} files uploaded" if shown.files else "no file yet" if gate.state == "open" else gate.state
        title = f"partition {shown.partition}: offsets {shown.base_offset:,} to {shown.end_offset:,}, {count:,} rows, {what}"
        found.append(Tube(shown.partition, height, level, uploaded, title))
    return found


def share(part: float, whole: float) -> float:
    """A part of a whole, in the units of a bar: 0 to `WIDTH`."""
    return round(WIDTH * min(max(part / whole, 0.0), 1.0), 1) if whole > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over time. `top`: the value at the upper edge."""

    top: float
    first: str
    second: str
    area: str
    span_s: float


def chart(first: Sequence[float], second: Sequence[float], span_s: float, *, steps: bool, slots: int) -> Chart:
    """A chart of two series, the newest value at the right edge.

    Args:
        steps: values hold until the next one, as a number of brokers does.
        slots: number of values for which there is room.
    """
    top = max(max(first, default=0.0), max(second, default=0.0)) * 1.15 or 1.0
    unit = WIDTH / max(slots - 1, 1)

    def points(values: Sequence[float]) -> list[tuple[float, float]]:
        at = WIDTH - unit * (len(values) - 1)
        found: list[tuple[float, float]] = []
        for number, value in enumerate(values):
            x, y = round(at + unit * number, 1), round(CHART_HEIGHT * (1 - value / top), 1)
            if steps and found and found[-1][1] != y:
                found.append((x, found[-1][1]))
            found.append((x, y))
        return found

    def path(line: Sequence[tuple[float, float]]) -> str:
        return "M" + " L".join(f"{x:g} {y:g}" for x, y in line) if len(line) > 1 else ""

    lower = points(first)
    area = ""
    if len(lower) > 1:
        area = f"{path(lower)} L{lower[-1][0]:g} {CHART_HEIGHT:g} L{lower[0][0]:g} {CHART_HEIGHT:g} Z"
    return Chart(top, path(lower), path(points(second)), area, span_s)
