"""Floods from YAML. Every mistake is reported with its line, its field and the expected value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, cast, get_args
from zoneinfo import ZoneInfo

import yaml

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.schemas.registry import Format
from headgate.pipelines.floods.cron import Cron
from headgate.pipelines.floods.document import DocumentError, Notes, Problem, Section, compose, describe, duration_ms, moment
from headgate.pipelines.floods.model import (
    HOUR_MS,
    MINUTE_MS,
    Asset,
    Brokers,
    By,
    Flood,
    Occurrences,
    PartitionBy,
    Partitions,
    Place,
    Source,
)  # fmt: skip
from headgate.pipelines.floods.spans import has_whole_hours, names_partition
from headgate.pipelines.framing.declared import FORMATS, Framing
from headgate.pipelines.identity import identity
from headgate.pipelines.ways import Files, Order

FLOODS_MAX = 1000
LATE_NAME_CHARS_MAX = 49
"""Length of the name of a flood with late rows. A gate's id has 80 characters: name, partition and `.late-` with eight digits."""
AT_MAX = 1000
BROKERS_MAX = 64
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_KEY_PART = re.compile(r"[A-Za-z0-9_.-]+")
_GROUP = re.compile(r"[A-Za-z0-9_]+")
_OWNER = re.compile(r"team:[A-Za-z0-9_ .-]+|[^@\s]+@[^@\s]+\.[^@\s]+")
_TAG = re.compile(r"(?:[A-Za-z0-9_.-]{1,63}/)?[A-Za-z0-9_.-]{1,63}")
KINDS_MAX = 3
"""Dagster's limit of kinds of one asset."""
CONDITIONS = ("upstream", "eager", "on_missing")
ON_CRON = re.compile(r"on_cron\((.*)\)")
_TTL_MS_MIN = 10_000
_YEARS_AHEAD = timedelta(days=30 * 365)
"""Time after the start of a flood for which its clock is looked at."""
_DEADLINE_MS_MIN = MINUTE_MS
"""Shortest deadline, in ms: Spark and the brokers need a part of it to start."""
_DEFAULTS = Flood(name="", topic="", source=Source(path=""), event_time="", partitions=Partitions(start=datetime.min))
"""The values of optional fields that a file does not have: the defaults of `floods/model.py`."""


def parse(text: str, file: str, taken: Mapping[str, str] | None = None, others: Sequence[Flood] = ()) -> list[Flood]:
    """The floods of one file.

    Args:
        file: its name, for messages.
        taken: names of other floods, each with its place.
        others: those floods.

    Raises:
        DocumentError: all mistakes of the file.
    """
    notes = Notes(file)
    root = Section(compose(text, file), "", notes)
    floods: list[Flood] = []
    names = dict(taken or {})
    found = root.items("floods", "a list of floods")
    if root.has("floods") and not found and not notes.problems:
        root.wrong("floods", "at least one flood")
    if len(found) > FLOODS_MAX:
        root.wrong("floods", f"at most {FLOODS_MAX} floods")
    for path, node in found[:FLOODS_MAX]:
        flood = _flood(Section(node, path, notes))
        if flood is None:
            continue
        if flood.name in names:
            notes.add(node, f"{path}.name", f"expected a name of its own, found `{flood.name}`, which {names[flood.name]} has too")
        elif (other := _same_rows(flood, [*others, *floods])) is not None:
            notes.add(
                node,
                path,
                f"expected rows of its own, found those of flood `{other.name}`: the same source, `where` and days into "
                f"`{flood.topic}`, where each row would be twice. Give them different `where`, or `partitions` that do not overlap",
            )
        names.setdefault(flood.name, path)
        floods.append(flood)
    root.close()
    notes.check()
    return floods


class _PlainDumper(yaml.SafeDumper):
    """Writes a value as often as it occurs: two floods may have one object, of a variable or of a YAML alias."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def parse_values(document: Mapping[str, Any], name: str) -> list[Flood]:
    """The floods of a document that another program has read: a component's attributes, or arguments of `flood`.

    Args:
        name: of the document, for messages.

    Raises:
        DocumentError: all mistakes, without lines. InvalidError: a value that YAML cannot have.
    """
    try:
        text = yaml.dump(document, Dumper=_PlainDumper, sort_keys=False)
    except yaml.YAMLError as error:
        raise InvalidError(Reason.INVALID_CONFIG, f"{name}: expected plain values: {error}") from None
    except RecursionError:
        raise InvalidError(Reason.INVALID_CONFIG, f"{name}: expected plain values, found one that contains itself") from None
    try:
        return parse(text, name)
    except DocumentError as error:
        raise DocumentError([replace(problem, line=0) for problem in error.problems]) from None


def flood(**fields: Any) -> Flood:
    """A flood as an object, from the fields of ``floods.yaml``::

        clicks = flood(
            name="clicks", topic="clicks", source="s3://lake/clicks/%Y-%m-%d.parquet", key="user_id", event_time="clicked_at",
            partitions={"by": "day", "start": "2026-01-01"}, deadline="2h", brokers={"min": 1, "max": 3},
        )

    `asset` may also be an `Asset`, whose `deps` and `automation_condition` may be objects of Dagster. Raises DocumentError with
    all mistakes.
    """
    given = fields.get("asset")
    plain = {name: value for name, value in fields.items() if value is not given or not isinstance(given, Asset)}
    (found,) = parse_values({"floods": [plain]}, "flood")
    return replace(found, asset=given) if isinstance(given, Asset) else found


def parse_all(documents: Iterable[tuple[str, str]]) -> list[Flood]:
    """The floods of several files, each (text, file). Raises DocumentError with the problems of all files."""
    floods: list[Flood] = []
    problems: list[Problem] = []
    owners: dict[str, str] = {}
    for text, file in documents:
        try:
            found = parse(text, file, owners, floods)
        except DocumentError as error:
            problems += error.problems
            continue
        owners.update((flood.name, file) for flood in found)
        floods += found
    if problems:
        raise DocumentError(problems)
    return floods


def _same_rows(flood: Flood, others: Sequence[Flood]) -> Flood | None:
    """A flood that brings the same rows into the same topic; None without one."""
    return next(
        (other for other in others if other.topic == flood.topic and other.where == flood.where and _overlap(other, flood)), None
    )


def _overlap(left: Flood, right: Flood) -> bool:
    ends = [flood.partitions.end for flood in (left, right)]
    starts = [flood.partitions.start for flood in (left, right)]
    apart = any(end is not None and end <= start for end, start in ((ends[0], starts[1]), (ends[1], starts[0])))
    sources = [identity("", flood.source.path, flood.source.format, flood.source.options).parts for flood in (left, right)]
    return sources[0] == sources[1] and not apart


def _flood(section: Section) -> Flood | None:
    default = _DEFAULTS
    before = len(section.notes.problems)
    name = section.text("name", "a name such as `clicks`")
    if name is not None and not _NAME.fullmatch(name):
        section.wrong("name", "letters, digits and `_`, a letter first, at most 63")
    topic = section.text("topic", "the topic's name")
    if topic is not None and (not _TOPIC.fullmatch(topic) or topic in (".", "..")):
        section.wrong("topic", "a Kafka topic name: letters, digits, `.`, `_`, `-`, at most 249")
    partitions = _partitions(section)
    source = _source(section, partitions)
    key, key_frame = _message(section, "key", topic)
    value, value_frame = _message(section, "value", topic)
    event_time = section.text("event_time", "the column that says when it happened")
    headers = section.text("headers")
    where = section.text("where")
    late = section.text("late")
    if late is not None and name is not None and len(name) > LATE_NAME_CHARS_MAX:
        section.wrong("name", f"at most {LATE_NAME_CHARS_MAX} characters, because `late` makes the names of gates longer")
    partition_by = _partition_by(section, source, partitions)
    topic_partitions = section.integer("topic_partitions", 1, 10_000, None)
    occurrences = _occurrences(section, "UTC" if partitions is None else partitions.timezone)
    lead_time_ms = section.duration_ms("lead_time", default.lead_time_ms, high=6 * 24 * HOUR_MS)
    deadline = _deadline(section, occurrences.timezone)
    catch_up_ms = section.duration_ms("catch_up", default.catch_up_ms, low=1000)
    brokers = _brokers(section)
    place = cast(Place, section.choice("place", ("now", "front"), default.place))
    files = cast(Files, section.choice("files", get_args(Files), default.files))
    order = cast(Order, section.choice("order", get_args(Order), default.order))
    reservation_ttl_ms = section.duration_ms("reservation_ttl", default.reservation_ttl_ms, low=_TTL_MS_MIN, high=24 * HOUR_MS)
    gate_ttl_ms = section.duration_ms("gate_ttl", default.gate_ttl_ms, low=_TTL_MS_MIN, high=7 * 24 * HOUR_MS)
    verify = section.choice("verify", ("true", "false"), str(default.verify).lower()) == "true"
    groups = section.words("groups")
    asset = _asset(section)
    section.close()
    if len(section.notes.problems) > before:
        return None
    assert name and topic and source and event_time and partitions, "what is missing was noted"
    return Flood(
        name=name, topic=topic, source=source, key=key, value=value or default.value, key_frame=key_frame, value_frame=value_frame,
        event_time=event_time, headers=headers, where=where, late=late, partition_by=partition_by,
        topic_partitions=topic_partitions, partitions=partitions,
        occurrences=occurrences, lead_time_ms=lead_time_ms,
        deadline=deadline, catch_up_ms=catch_up_ms, brokers=brokers, place=place, files=files, order=order,
        reservation_ttl_ms=reservation_ttl_ms, gate_ttl_ms=gate_ttl_ms, verify=verify, groups=groups, asset=asset,
    )  # fmt: skip


def _message(parent: Section, name: str, topic: str | None) -> tuple[str | None, Framing | None]:
    """The expression of a key or a value, and its frame."""
    if not isinstance(parent.peek(name), yaml.MappingNode):
        return parent.text(name), None
    section = parent.section(name)
    assert section is not None, "it is a mapping"
    column = section.text("column", "the column that is the key") if name == "key" else None
    format = section.choice("format", FORMATS, "")
    if not section.has("format"):
        section.wrong("format", " or ".join(f"`{format_}`" for format_ in FORMATS))
    registry = section.text("registry", "the URL of a schema registry")
    subject = section.text("subject") or f"{topic}-{name}"
    register = section.choice("register", ("true", "false"), "false") == "true"
    section.close()
    if not (format and registry and topic):
        return column, None
    try:
        return column, Framing(format=cast(Format, format), registry=registry, subject=subject, register=register)
    except InvalidError:
        section.wrong("registry", "a URL such as `http://host:8081`")
        return column, None


def _source(parent: Section, partitions: Partitions | None) -> Source | None:
    node = parent.take("source", "a path, or `path`, `format` and `options`")
    if node is None:
        return None
    if isinstance(node, yaml.ScalarNode):
        path = parent.text("source")
        _path(parent, "source", path, partitions)
        return None if path is None else Source(path=path)
    section = Section(node, parent.at("source"), parent.notes)
    path = section.text("path", "where the data is")
    _path(section, "path", path, partitions)
    format = section.text("format") or "parquet"
    options = section.texts("options")
    section.close()
    return None if path is None else Source(path=path, format=format, options=options)


def _path(section: Section, name: str, path: str | None, partitions: Partitions | None) -> None:
    """A daily partition has 24 hours: a path with one hour would silently leave out the others."""
    if path is not None and "%H" in path and partitions is not None and partitions.by == "day":
        section.wrong(name, "a path without `%H`, because the partitions are days")


def _partitions(parent: Section) -> Partitions | None:
    section = parent.section("partitions", "`by` and `start`")
    if section is None:
        return None
    by = cast(By, section.choice("by", ("day", "hour"), "day"))
    zone = _zone(section)
    start = _local(section, "start", zone, "the first day, such as `2013-01-01`")
    end = _local(section, "end", zone, None)
    if start is not None and end is not None and end <= start:
        section.wrong("end", f"a time after {start.isoformat()}")
    for name, when in (("start", start), ("end", end)):
        if when is not None and (when.minute or when.second or when.microsecond or (by == "day" and when.hour)):
            section.wrong(name, f"a whole {by}")
    section.close()
    if start is None:
        return None
    found = Partitions(by=by, start=start, end=end, timezone=zone)
    if by == "hour" and not has_whole_hours(found, start + _YEARS_AHEAD):
        section.wrong("timezone", f"`UTC`, as hours begin at other minutes after the clock of {zone} changes by a part of an hour")
    return found


def _partition_by(section: Section, source: Source | None, partitions: Partitions | None) -> PartitionBy:
    found = cast(PartitionBy, section.choice("partition_by", ("event_time", "path"), _DEFAULTS.partition_by))
    if found == "path" and source is not None and partitions is not None and not names_partition(source.path, partitions.by):
        form = "%Y-%m-%d" if partitions.by == "day" else "%Y-%m-%d/%H"
        section.notes.add(
            section.take("source"),
            section.at("source"),
            f"expected a path that names each {partitions.by}, such as `/lake/clicks/{form}`, because `partition_by` is `path`, "
            f"found `{source.path}`",
        )
    return found


def _occurrences(parent: Section, partitions_zone: str) -> Occurrences:
    """The times of a flood, in their own zone or else that of the partitions."""
    node = parent.take("schedule")
    if node is None:
        return Occurrences(timezone=partitions_zone)
    if isinstance(node, yaml.ScalarNode):
        return Occurrences(cron=_cron(parent, "schedule"), timezone=partitions_zone)
    section = Section(node, parent.at("schedule"), parent.notes)
    zone = _zone(section, partitions_zone)
    text = section.text("cron")
    cron = None if text is None else _cron(section, "cron")
    at: list[datetime] = []
    listed = section.items("at", None)
    for path, node in listed[:AT_MAX]:
        when = moment(node.value, zone) if isinstance(node, yaml.ScalarNode) else None
        if when is None:
            section.notes.add(node, path, f"expected a time such as `2026-12-01T06:00:00Z`, found {describe(node)}")
            continue
        at.append(when)
    if len(listed) > AT_MAX:
        section.wrong("at", f"at most {AT_MAX} times")
    if text is None and not section.has("at"):
        section.notes.add(section.node, section.path, "expected `cron` or `at`, found neither")
    if text is not None and section.has("at"):
        section.notes.add(section.node, section.path, "expected `cron` or `at`, found both")
    section.close()
    return Occurrences(cron=cron, at=tuple(sorted(set(at))), timezone=zone)


def _cron(section: Section, name: str) -> Cron | None:
    try:
        return Cron.parse(section.text(name) or "")
    except ValueError as error:
        section.wrong(name, str(error))
        return None


def _deadline(section: Section, zone: str) -> int | datetime:
    text = section.text("deadline")
    if text is None:
        return _DEFAULTS.deadline
    if (found_ms := duration_ms(text)) is not None:
        if found_ms < _DEADLINE_MS_MIN:
            section.wrong("deadline", "at least `1m`, because Spark and the brokers take a part of it to start")
        return section.duration_ms("deadline", 0)
    when = moment(text, zone)
    if when is None:
        section.wrong("deadline", "a duration such as `2h`, or a time such as `2026-12-01T08:00:00Z`")
        return 0
    return when


def _brokers(parent: Section) -> Brokers:
    section = parent.section("brokers")
    if section is None:
        return Brokers()
    default = Brokers()
    minimum = section.integer("min", 1, BROKERS_MAX, default.minimum) or default.minimum
    maximum = section.integer("max", 1, BROKERS_MAX, max(default.maximum, minimum)) or default.maximum
    if maximum < minimum:
        section.wrong("max", f"at least `min`, which is {minimum}")
    bytes_per_s = section.size("bytes_per_s", default.bytes_per_s)
    wait_ms = section.duration_ms("wait", default.wait_ms, low=1000)
    short = section.choice("short", ("run", "fail"), default.short)
    section.close()
    return Brokers(
        minimum=minimum, maximum=maximum, bytes_per_s=bytes_per_s, wait_ms=wait_ms, short="fail" if short == "fail" else "run"
    )


def _asset(parent: Section) -> Asset:
    section = parent.section("asset")
    if section is None:
        return Asset()
    prefix = tuple(part for text in section.words("key_prefix") for part in text.split("/"))
    if not all(map(_KEY_PART.fullmatch, prefix)):
        section.wrong("key_prefix", "parts of letters, digits, `_`, `-` and `.`, such as `[lake, web]` or `lake/web`")
    group = section.text("group")
    if group is not None and not _GROUP.fullmatch(group):
        section.wrong("group", "letters, digits and `_`")
    deps = section.words("deps")
    if not all(_KEY_PART.fullmatch(part) for key in deps for part in key.split("/")):
        section.wrong("deps", "keys of assets, such as `lake/clicks`")
    kinds = section.words("kinds")
    if len(kinds) > KINDS_MAX:
        section.wrong("kinds", f"at most {KINDS_MAX} kinds")
    owners = section.words("owners")
    if not all(map(_OWNER.fullmatch, owners)):
        section.wrong("owners", "e-mail addresses, or teams such as `team:web`")
    tags = section.texts("tags")
    if not all(map(_TAG.fullmatch, (*tags, *filter(None, tags.values())))):
        section.wrong("tags", "names and values of letters, digits, `_`, `-` and `.`, at most 63")
    condition = section.text("automation_condition")
    if condition is not None:
        condition = _condition(section, condition)
    section.close()
    return Asset(key_prefix=prefix, group=group, deps=deps, kinds=kinds, owners=owners, tags=tags, automation_condition=condition)


def _condition(section: Section, text: str) -> str | None:
    found = ON_CRON.fullmatch(text)
    if text in CONDITIONS:
        return text
    if found is None:
        section.wrong("automation_condition", f"{', '.join(f'`{condition}`' for condition in CONDITIONS)} or `on_cron(0 6 * * *)`")
        return None
    try:
        Cron.parse(found[1])
    except ValueError as error:
        section.wrong("automation_condition", f"{error} in `on_cron(...)`")
        return None
    return text


def _zone(section: Section, default: str = "UTC") -> str:
    text = section.text("timezone") or default
    try:
        ZoneInfo(text)
    except (KeyError, ValueError, OSError):
        section.wrong("timezone", "a time zone such as `Europe/Berlin`")
        return "UTC"
    return text


def _local(section: Section, name: str, zone: str, expected: str | None) -> datetime | None:
    """A time in a zone: a time without an offset is local there."""
    text = section.text(name, expected)
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        section.wrong(name, expected or "a day such as `2014-01-01`")
        return None
    place = ZoneInfo(zone)
    return found.replace(tzinfo=place) if found.tzinfo is None else found.astimezone(place)
