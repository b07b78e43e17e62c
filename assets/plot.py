"""A picture of a flood: brokers over time, the requested number, and rows. Plain SVG. Pure."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from headgate.assets.recorder import Sample

_WIDTH, _HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 62, 34, 34
POINTS_MAX = 200
"""Bound of the picture's size in bytes: Dagster stores a copy with every partition of a run."""
_LIVE, _DESIRED, _ROWS = "#2563eb", "#94a3b8", "#f59e0b"


def svg(samples: Sequence[Sample], title: str) -> str:
    """The picture; an empty frame without samples."""
    # The last sample is always drawn: it shows that the brokers have left.
    samples = [*samples[: -1 : -(-len(samples) // POINTS_MAX) or 1], *samples[-1:]]
    span_s = max((sample.at_s for sample in samples), default=1.0) or 1.0
    most_brokers = max((max(sample.live, sample.desired) for sample in samples), default=1) or 1
    most_rows = max((sample.rows_done for sample in samples), default=0)
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(at_s: float) -> float:
        return _LEFT + width * at_s / span_s

    def y(share: float) -> float:
        return _TOP + height * (1 - 0.92 * share)

    live = _steps([(x(sample.at_s), y(sample.live / most_brokers)) for sample in samples])
    desired = _steps([(x(sample.at_s), y(sample.desired / most_brokers)) for sample in samples])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        'font-family="system-ui,sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="20" font-size="14" font-weight="600" fill="#0f172a">{_escaped(title)}</text>',
    ]
    for brokers in range(most_brokers + 1):
        if most_brokers > 12 and brokers % 8:
            continue
        at = y(brokers / most_brokers)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#e2e8f0"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end" fill="{_LIVE}">{brokers}</text>')
    for step in range(6):
        at_s = span_s * step / 5
        parts.append(f'<text x="{x(at_s):.1f}" y="{_HEIGHT - 14}" text-anchor="middle" fill="#64748b">{at_s:.0f} s</text>')
    if most_rows:
        rows = " ".join(f"{x(sample.at_s):.1f},{y(sample.rows_done / most_rows):.1f}" for sample in samples)
        parts.append(f'<polyline points="{rows}" fill="none" stroke="{_ROWS}" stroke-width="2"/>')
        parts.append(f'<text x="{_WIDTH - _RIGHT + 6}" y="{y(1) + 4:.1f}" fill="{_ROWS}">{_short(most_rows)}</text>')
    parts.append(f'<polyline points="{desired}" fill="none" stroke="{_DESIRED}" stroke-width="2" stroke-dasharray="5 4"/>')
    parts.append(f'<polyline points="{live}" fill="none" stroke="{_LIVE}" stroke-width="3"/>')
    for number, (text, color) in enumerate((("brokers", _LIVE), ("asked for", _DESIRED), ("rows", _ROWS))):
        at_x = _WIDTH - _RIGHT - 230 + number * 84
        parts.append(f'<rect x="{at_x}" y="12" width="12" height="4" fill="{color}"/>')
        parts.append(f'<text x="{at_x + 17}" y="18" fill="#334155">{text}</text>')
    parts.append("</svg>")
    return "".join(parts)


def markdown(samples: Sequence[Sample], title: str) -> str:
    """The picture as Markdown, which loads nothing from elsewhere."""
    data = base64.b64encode(svg(samples, title).encode()).decode()
    return f"![{title}](data:image/svg+xml;base64,{data})"


def _steps(points: Sequence[tuple[float, float]]) -> str:
    """A step line, for values that change at once."""
    found: list[str] = []
    before: float | None = None
    for at_x, at_y in points:
        if before is not None and before != at_y:
            found.append(f"{at_x:.1f},{before:.1f}")
        found.append(f"{at_x:.1f},{at_y:.1f}")
        before = at_y
    return " ".join(found)


def _short(number: int) -> str:
    for limit, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= limit:
            return f"{number / limit:.3g} {unit}"
    return str(number)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
