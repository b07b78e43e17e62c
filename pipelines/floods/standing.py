"""Where a flood's history will stand in its topic, and what stands there already. Pure.

Readers from the beginning see the order of offsets. `place: now` puts history behind all records that exist; `place: front` puts
it before all of them, each flood before the one before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.plan import SAID_MAX
from headgate.pipelines.floods.spans import LATE, TimeSpan, gate_id
from headgate.pipelines.identity import parts_of
from headgate.pipelines.room import ROOM
from headgate.pipelines.topic_rules import TopicRules, check_rules, rules_of

if TYPE_CHECKING:
    from headgate.broker.client.gate_admin import Gate, GateWindow
    from headgate.broker.client.types import Partition, TopicDescription

_SOURCE_PARTS = ("source", "format", "options", "where")
"""The parts of a gate's definition that decide which rows it has."""


@dataclass(frozen=True, slots=True)
class Held:
    """A gate of the topic. `definition`: the digest of each part of the flood that opened it."""

    id: str
    state: str
    rows: int
    definition: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as a flood finds it. `live`: readable records that came from producers. `room`: offsets in front of it."""

    partitions: int
    live: int
    room: int
    gates: tuple[Held, ...]
    rules: TopicRules = field(default_factory=TopicRules)


def topic_of(found: TopicDescription | None, gates: Iterable[Gate]) -> Topic | None:
    """A topic with its gates, as a plan needs it."""
    if found is None:
        return None
    held = list(gates)
    room = next((entry.value for entry in found.config if entry.name == ROOM), "0")
    return Topic(
        partitions=len(found.partitions),
        live=_live(found.partitions, [window for gate in held if str(gate.state) == "filled" for window in gate.windows]),
        room=int(room) if room and room.isdigit() else 0,
        gates=tuple(Held(id=gate.id, state=str(gate.state), rows=gate.rows, definition=parts_of(gate.definition)) for gate in held),
        rules=rules_of(found.config),
    )


def _live(partitions: Iterable[Partition], windows: Iterable[GateWindow]) -> int:
    """The readable records that did not come with gates."""
    spans = {partition.number: (max(partition.log_start, 0), partition.high_watermark) for partition in partitions}
    found = sum(max(partition.records, 0) for partition in partitions)
    for window in windows:
        start, end = spans.get(window.partition, (0, 0))
        found -= max(min(window.end_offset, end) - max(window.base_offset, start), 0)
    return max(found, 0)


def check_topic(flood: Flood, topic: Topic | None) -> None:
    """Raise InvalidError when the topic differs from the declaration."""
    if topic is None:
        return
    if flood.topic_partitions is not None and topic.partitions != flood.topic_partitions:
        raise InvalidError(
            Reason.INVALID_PARTITIONS,
            f"the topic has another number of partitions than the flood says. topic=`{flood.topic}` "
            f"partitions=`{topic.partitions}` topic_partitions=`{flood.topic_partitions}`",
        )
    check_rules(flood.topic, topic.rules, flood.key, flood.event_time)
    if flood.place == "front" and not topic.room:
        raise InvalidError(
            Reason.INVALID_CONFIG,
            f"no room in front: a topic gets it when it is created, with {ROOM}, as a flood does it. topic=`{flood.topic}`",
        )


def filled_keys(flood: Flood, keys: Sequence[str], topic: Topic | None) -> set[str]:
    """The partitions that are in the topic."""
    filled = set() if topic is None else {gate.id for gate in topic.gates if gate.state == "filled"}
    return {key for key in keys if gate_id(flood, key) in filled}


def loaded_rows(flood: Flood, key: str, topic: Topic) -> int:
    """The rows of a partition that are in the topic, with its late ones."""
    own = gate_id(flood, key)
    return sum(
        gate.rows for gate in topic.gates if gate.state == "filled" and (gate.id == own or gate.id.startswith(f"{own}{LATE}"))
    )


def stands(flood: Flood, spans: Sequence[TimeSpan], topic: Topic | None) -> list[str]:
    """What will stand before and behind the history of these partitions, and how to change it."""
    if not spans:
        return ["nothing is added"]
    if topic is None:
        return ["the history stands first, and live records behind it: the flood creates the topic"]
    others = {gate.id: gate for gate in topic.gates if gate.state == "filled"}
    if flood.place == "front":
        found = ["the history stands before all records of the topic"]
        newer = _loaded_keys(flood, others, before=spans[-1].key)
        if newer:
            found.append(
                f"days before {spans[-1].key} are in the topic and will stand behind it ({_some(newer)}): event time goes back "
                "there. With `place: front` load the newest days first"
            )
        return found
    found = []
    if topic.live:
        way_out = (
            "`place: front` puts it before them"
            if topic.room
            else f"only a topic that was created with `{ROOM}` has room before them, as a flood creates it"
        )
        found.append(f"about {topic.live:,} live records are in the topic and stay before the history; {way_out}")
    else:
        found.append("no live record stands before the history; those from now on stand behind it")
    late = [span.key for span in spans if span.late]
    if late:
        found.append(f"late rows stand behind the other rows of their days ({_some(late)}): event time goes back there")
    later = [key for key in _loaded_keys(flood, others) if key > spans[0].key]
    if later:
        found.append(
            f"later days are in the topic and stand before it ({_some(later)}): event time goes back at {spans[0].key}. Load days "
            "in their order" + (", or older ones with `place: front`, the newest first" if topic.room else "")
        )
    return found


def _loaded_keys(flood: Flood, gates: Mapping[str, Held], before: str | None = None) -> list[str]:
    """The loaded partitions of this flood, oldest first; only those before a key."""
    prefix = f"{flood.name}."
    keys = sorted(name.removeprefix(prefix) for name in gates if name.startswith(prefix) and LATE not in name)
    return [key for key in keys if before is None or key < before]


def _some(keys: Sequence[str]) -> str:
    return ", ".join(keys) if len(keys) < 4 else f"{keys[0]} ... {keys[-1]}, {len(keys)} in all"


def doubles(
    flood: Flood, spans: Sequence[TimeSpan], digests: Mapping[str, Mapping[str, frozenset[str]]], topic: Topic | None
) -> str | None:
    """The reason why these partitions' rows are in the topic already under another flood's name; None when they are not.

    Args:
        digests: of each partition, by key, those that its own gate may have (`Identity.digests`).
    """
    held: dict[tuple[str, ...], set[str]] = {}
    for gate in () if topic is None else topic.gates:
        if gate.state != "released" and gate.definition:
            held.setdefault(tuple(gate.definition.get(part, "") for part in _SOURCE_PARTS), set()).add(gate.id)
    # A partition's own gate is open when a run of it was killed: the next run takes it up.
    found = [
        f"{span.key}: {sorted(others)[0]}"
        for span in spans
        for rows in product(*(digests[span.key][part] for part in _SOURCE_PARTS))
        if (others := held.get(rows, set()) - {gate_id(flood, span.key, late=span.late)})
    ]
    if not found:
        return None
    return (
        "the same rows are in the topic already, under another flood's name: was the flood renamed? Give it that name, or another "
        f"`where` or `source`. topic=`{flood.topic}` gates=`{', '.join(found[:SAID_MAX])}` count=`{len(found)}`"
    )


def other_keys(flood: Flood, digests: Mapping[str, frozenset[str]], topic: Topic | None) -> str | None:
    """A note about history in the topic whose keys are defined in another way; None without such history."""
    found = sorted(
        {
            gate.id.split(".", 1)[0]
            for gate in (() if topic is None else topic.gates)
            if gate.state == "filled" and "key" in gate.definition and gate.definition["key"] not in digests["key"]
            if not gate.id.startswith(f"{flood.name}.")
        }
    )
    if not found:
        return None
    return (
        "the topic has history of other floods, whose keys are defined in another way: is it the right topic? Records of one key "
        f"stand in one partition only if their keys are equal byte by byte. topic=`{flood.topic}` "
        f"floods=`{', '.join(found[:SAID_MAX])}`"
    )
