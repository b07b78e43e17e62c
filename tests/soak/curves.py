"""The curves of a run: their columns, bounds and units, the CSV file, and a picture with one panel for each. Pure but for files."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.soak.judge import Bound, Judged, judge

MIB = 1 << 20
_WIDTH, _HEIGHT = 720, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 16, 30, 22
_POINTS_MAX = 800

Row = Mapping[str, float | None]
"""One sample: `at_s`, and the curves that were measured then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A column of the CSV file. The picture shows it divided by `scale`, in `unit`."""

    name: str
    title: str
    bound: Bound
    unit: str = ""
    scale: float = 1.0


CURVES = (
    Curve(
        name="rss_bytes",
        title="memory of the broker that is never killed",
        bound=Bound(share=0.08, amount=10 * MIB),
        unit="MiB",
        scale=MIB,
    ),
    Curve(
        name="encoders_bytes",
        title="memory of its processes that encode history",
        bound=Bound(share=0.08, amount=10 * MIB),
        unit="MiB",
        scale=MIB,
    ),
    Curve(name="open_files", title="its open files", bound=Bound(share=0.1, amount=8)),
    Curve(name="objects", title="objects in the store", bound=Bound(share=0.15, amount=30)),
    Curve(name="store_bytes", title="bytes in the store", bound=Bound(share=0.15, amount=4 * MIB), unit="MiB", scale=MIB),
    Curve(name="manifest_bytes", title="manifest", bound=Bound(share=0.15, amount=4096), unit="KiB", scale=1024),
    Curve(name="recovery_s", title="from SIGKILL until all partitions acknowledge", bound=Bound(share=0.5, amount=1.0), unit="s"),
)


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    names = ["at_s", *(curve.name for curve in CURVES)]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows({name: row.get(name) for name in names} for row in rows)


def series(rows: Sequence[Row], name: str) -> tuple[list[float], list[float]]:
    """(times in seconds, values) of the samples that have this curve."""
    found = [(at_s, value) for row in rows if (value := row.get(name)) is not None and (at_s := row["at_s"]) is not None]
    return [at_s for at_s, _ in found], [value for _, value in found]


def judge_all(rows: Sequence[Row]) -> dict[str, Judged]:
    """The verdict on every curve. Raises ValueError, see `judge`."""
    return {curve.name: judge(*series(rows, curve.name), curve.bound) for curve in CURVES}


def lines(judged: Mapping[str, Judged]) -> list[str]:
    """One line of text for each curve."""
    found = []
    for curve in CURVES:
        one = judged[curve.name]
        middle, last, rise, bound = (value / curve.scale for value in (one.middle, one.last, one.slope_rise, one.bound))
        found.append(
            f"{'GROWS' if one.grows else 'level'}  {curve.title}: median {middle:,.1f} -> {last:,.1f} {curve.unit}, "
            f"slope {rise:+,.2f} within a third of the run, bound {bound:,.1f}"
        )
    return found


def svg(rows: Sequence[Row], judged: Mapping[str, Judged], title: str) -> str:
    """The picture: a panel for each curve, with the medians of the middle and the last third."""
    height = 34 + _HEIGHT * len(CURVES)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'font-family="system-ui,sans-serif" font-size="11">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="22" font-size="14" font-weight="600" fill="#0f172a">{title}</text>',
    ]
    span_s = max((row["at_s"] or 0.0 for row in rows), default=1.0) or 1.0
    for number, curve in enumerate(CURVES):
        parts += _panel(curve, series(rows, curve.name), judged.get(curve.name), span_s, 34 + number * _HEIGHT)
    return "\n".join([*parts, "</svg>\n"])


def _panel(curve: Curve, samples: tuple[list[float], list[float]], judged: Judged | None, span_s: float, above: int) -> list[str]:
    times, values = samples
    step = max(1, len(times) // _POINTS_MAX)
    top = (max(values, default=0.0) or 1.0) * 1.08
    low, right = above + _HEIGHT - _BOTTOM, _WIDTH - _RIGHT

    def x(at_s: float) -> float:
        return _LEFT + (right - _LEFT) * at_s / span_s

    def y(value: float) -> float:
        return low - (low - above - _TOP) * value / top

    unit = f" ({curve.unit})" if curve.unit else ""
    parts = [f'<text x="{_LEFT}" y="{above + 20}" fill="#334155">{curve.title}{unit}</text>']
    for share in (0.0, 0.5, 1.0):
        at = y(top * share)
        parts.append(f'<line x1="{_LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}" stroke="#e2e8f0"/>')
        parts.append(
            f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end" fill="#64748b">{top * share / curve.scale:,.4g}</text>'
        )
    for third in range(4):
        at_x = x(span_s * third / 3)
        parts.append(f'<line x1="{at_x:.1f}" x2="{at_x:.1f}" y1="{above + _TOP}" y2="{low}" stroke="#e2e8f0"/>')
        label = f"{span_s * third / 180:,.1f} min"
        parts.append(f'<text x="{at_x:.1f}" y="{low + 14}" text-anchor="middle" fill="#64748b">{label}</text>')
    points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in zip(times[::step], values[::step], strict=True))
    parts.append(f'<polyline points="{points}" fill="none" stroke="#2563eb" stroke-width="1.5"/>')
    if judged is not None:
        for third, value in ((1, judged.middle), (2, judged.last)):
            ends = f'x1="{x(span_s * third / 3):.1f}" x2="{x(span_s * (third + 1) / 3):.1f}"'
            color = "#dc2626" if judged.grows else "#f59e0b"
            parts.append(f'<line {ends} y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="{color}" stroke-width="2"/>')
    return parts
