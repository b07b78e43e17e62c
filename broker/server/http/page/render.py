"""Makes the HTML of the page from the model. The templates escape every value: names of topics, groups and clients come from
strangers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from headgate.broker.cluster.chronicle import SAMPLE_S, SAMPLES_MAX
from headgate.broker.server.http.page import drawing, text
from headgate.broker.server.view import model

HERE = Path(__file__).parent
STATIC_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
STEPS = (
    ("counting", "Count"),
    ("opening", "Open gate"),
    ("shuffling", "Sort"),
    ("writing", "Write"),
    ("committing", "Commit"),
    ("verifying", "Verify"),
)
"""The phases of a flood as a person follows them."""
SLOTS_MIN = 30
CARDS_MAX = 12
"""Floods and open gates that are drawn."""
SHARED = ("head", "floods", "brokers", "capacity", "decisions")
"""Parts that are the same on all pages. The others depend on the page's query."""
HANDS = ("login", "error", "messages", "rows", "group", "new_topic", "settings", "gate", "reservations", "broker", "access")
"""Pages of what people look into and change; `rows`: the messages of one."""


class Renderer:
    """The templates and static files, read once. Making it reads and compiles files: do it in a thread.

    Args:
        has_hands: pages lead to messages and to what can be changed.
    """

    shared_parts = SHARED

    def __init__(self, has_hands: bool) -> None:
        self.static = {
            path.name: (path.read_bytes(), STATIC_TYPES[path.suffix])
            for path in sorted((HERE / "static").iterdir())
            if path.suffix in STATIC_TYPES
        }
        digest = hashlib.sha256(b"".join(data for data, _ in self.static.values())).hexdigest()[:10]
        environment = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        for name in ("count", "exact", "size", "rate", "duration", "age", "coarse", "percent"):
            environment.filters[name] = getattr(text, name)
        for name in ("hue", "strip", "tubes", "share"):
            environment.globals[name] = getattr(drawing, name)
        environment.globals.update(static_version=digest, width=drawing.WIDTH, chart_height=drawing.CHART_HEIGHT, steps=STEPS)
        environment.globals["step_names"] = dict(STEPS)
        environment.globals["has_hands"] = has_hands
        self._templates = {
            name: environment.get_template(f"{name}.html")
            for name in (*SHARED, "topics", "groups", "page", "topic", "starting", *HANDS)
        }

    def part(self, name: str, **values: object) -> str:
        """One part of the page."""
        return self._templates[name].render(values)

    def steps(self, name: str, **values: object) -> Iterator[str]:
        """The same, piece by piece."""
        return self._templates[name].generate(values)

    def shared(self, name: str, cluster: model.Cluster) -> str:
        """One of the parts in `SHARED`."""
        extra: dict[str, object] = {}
        if name == "capacity":
            extra = _charts(cluster.capacity)
        elif name == "floods":
            extra = _flood_cards(cluster)
        return self.part(name, cluster=cluster, **extra)


def _charts(capacity: model.Capacity | None) -> dict[str, object]:
    samples = [] if capacity is None else capacity.samples
    # A young leader has few samples: its charts span five minutes at first.
    slots = min(max(len(samples), SLOTS_MIN), SAMPLES_MAX)
    span_s = SAMPLE_S * slots
    return {
        "brokers": drawing.chart(
            [sample.live for sample in samples], [sample.desired for sample in samples], span_s, steps=True, slots=slots
        ),
        "traffic": drawing.chart(
            [sample.bytes_in_per_s for sample in samples],
            [sample.bytes_out_per_s for sample in samples],
            span_s,
            steps=False,
            slots=slots,
        ),
    }


def _flood_cards(cluster: model.Cluster) -> dict[str, object]:
    """Floods with their gates, open gates without a flood, and what is over."""
    gates = {(gate.topic, gate.id): gate for gate in cluster.gates}
    running = [(flood, gates.get((flood.topic, flood.id))) for flood in cluster.floods if not flood.ended]
    ended = {(flood.topic, flood.id): flood for flood in cluster.floods if flood.ended}
    named = {(flood.topic, flood.id) for flood, _ in running}
    running, more = running[:CARDS_MAX], max(len(running) - CARDS_MAX, 0)
    alone = [gate for gate in cluster.gates if gate.state == "open" and (gate.topic, gate.id) not in named]
    over = [(gate, ended.pop((gate.topic, gate.id), None)) for gate in cluster.gates if gate.state != "open"]
    more += max(len(alone) + len(running) - CARDS_MAX, 0)
    alone = alone[: CARDS_MAX - len(running)]
    return {"running": running, "alone": alone, "more": more, "over": over, "ended": list(ended.values())}
