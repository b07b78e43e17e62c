"""Writes `messages/*.py` from Kafka's own message schemas: ``python -m headgate.broker.wire.kafka.generate``.

The schemas are the JSON files of Apache Kafka (clients/src/main/resources/common/message), as packaged in the development
dependency kafka-python. The result is checked in; `tests/unit/wire/test_generated.py` fails if it differs from this module's
output.

Of each message there is what the product uses: it reads requests, and writes answers. `CARRIED` names the APIs that Headgate's
own clients speak, each in one version: their requests are written and their answers read, too, in that version alone. The other
directions are made in memory, for tests and the simulation (`tests/support/messages.py`), and so are messages that only these
use.

How it works: every field has, for each version of its message, an *operation* (the primitive that reads or writes it there) or
none. Versions with the same operation form ranges, and ranges become an ``if version >= 9: ... elif ...`` chain; a field that is
the same in all versions costs no branch. Neighbouring fixed-width fields with the same versions share one `struct.Struct`. A
struct with an array is read and written by a generator, which yields before each step of some elements (`runtime/steps.py`): the
event loop can serve other requests in the middle of a message of any size. Plain functions read and write other structs. The
rules for tagged and ignorable fields are those of Kafka's own generator (generator/.../MessageDataGenerator.java).
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

from headgate.broker.wire.kafka.schema import FIXED, Field, Message, Struct, Versions, load, narrowed, snake

MESSAGES: dict[str, tuple[str, ...]] = {
    api: (f"{api}Request", f"{api}Response")
    for api in (
        "AddOffsetsToTxn",
        "AddPartitionsToTxn",
        "AlterClientQuotas",
        "AlterConfigs",
        "AlterUserScramCredentials",
        "ApiVersions",
        "ConsumerGroupDescribe",
        "ConsumerGroupHeartbeat",
        "CreateAcls",
        "CreatePartitions",
        "CreateTopics",
        "DeleteAcls",
        "DeleteGroups",
        "DeleteRecords",
        "DeleteTopics",
        "DescribeAcls",
        "DescribeClientQuotas",
        "DescribeCluster",
        "DescribeConfigs",
        "DescribeGroups",
        "DescribeLogDirs",
        "DescribeProducers",
        "DescribeTopicPartitions",
        "DescribeTransactions",
        "EndTxn",
        "DescribeUserScramCredentials",
        "Fetch",
        "FindCoordinator",
        "Heartbeat",
        "IncrementalAlterConfigs",
        "InitProducerId",
        "JoinGroup",
        "LeaveGroup",
        "ListGroups",
        "ListOffsets",
        "ListTransactions",
        "Metadata",
        "OffsetCommit",
        "OffsetDelete",
        "OffsetFetch",
        "OffsetForLeaderEpoch",
        "Produce",
        "SaslAuthenticate",
        "SaslHandshake",
        "SyncGroup",
        "TxnOffsetCommit",
    )
} | {name: (name,) for name in ("ConsumerProtocolAssignment", "ConsumerProtocolSubscription", "RequestHeader", "ResponseHeader")}
"""Modules and the schemas in each."""

READ_ONLY = frozenset(("ConsumerProtocolAssignment", "ConsumerProtocolSubscription"))
"""Messages without Request or Response in their name that the product reads."""
IN_MEMORY = frozenset(("Fetch", "Produce", "RequestHeader", "ResponseHeader"))
"""Modules that only tests and the simulation use: the product has code by hand for these."""
CARRIED = {
    "AlterClientQuotas": 1,
    "CreateAcls": 3,
    "CreatePartitions": 3,
    "CreateTopics": 7,
    "DeleteAcls": 3,
    "DeleteGroups": 2,
    "DeleteRecords": 2,
    "DeleteTopics": 6,
    "DescribeAcls": 3,
    "DescribeClientQuotas": 1,
    "FindCoordinator": 4,
    "IncrementalAlterConfigs": 1,
    "OffsetCommit": 9,
    "OffsetDelete": 0,
}
"""The APIs that Headgate's own clients speak, with the version that they speak (`broker/client/kafka.py`)."""

_LINE_MAX = 132


class Writer:
    """Lines with indentation, and the names that they need as imports or definitions."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0
        self.used: set[str] = set()
        self.packers: dict[str, str] = {}

    def line(self, text: str = "") -> None:
        self.lines.append("    " * self.depth + text if text else "")

    def block(self, head: str, body: Callable[[], None]) -> None:
        self.line(head)
        self.depth += 1
        body()
        self.depth -= 1

    def head(self, name: str, arguments: str, result: str) -> None:
        """The first line of a function, or three lines if it is too long."""
        line = f"def {name}({arguments}) -> {result}:"
        if len(line) <= _LINE_MAX:
            self.line(line)
            return
        self.line(f"def {name}(")
        self.line(f"    {arguments}")
        self.line(f") -> {result}:")

    def doc(self, text: str) -> None:
        text = " ".join(text.split()).replace("\\", "\\\\")
        if not text:
            return
        lines = textwrap.wrap(text, _LINE_MAX - 4 * self.depth - 6)
        if len(lines) == 1:
            self.line(f'"""{lines[0]}"""')
            return
        self.line(f'"""{lines[0]}')
        for rest in lines[1:]:
            self.line(rest)
        self.line('"""')

    def use(self, name: str) -> str:
        self.used.add(name)
        return name

    def packer(self, fields: list[Field]) -> str:
        """The Struct of these fixed-width fields."""
        name = "_" + "_".join(FIXED[x.kind][1] for x in fields).upper()
        self.packers[name] = ">" + "".join(FIXED[x.kind][0] for x in fields)
        return name

    def chain(self, ops: dict[int, str]) -> None:
        """One statement per version; versions with the same statement share a branch. Newest first."""
        ranges: list[tuple[int, str]] = []  # lowest version, statement
        for version in sorted(ops, reverse=True):
            if ranges and ranges[-1][1] == ops[version]:
                ranges[-1] = (version, ops[version])
            else:
                ranges.append((version, ops[version]))
        if len(ranges) == 1:
            self.line(ranges[0][1])
            return
        for index, (lowest, statement) in enumerate(ranges):
            word = "if" if index == 0 else "elif"
            last = index == len(ranges) - 1
            self.block("else:" if last else f"{word} version >= {lowest}:", lambda text=statement: self.line(text))  # type: ignore[misc]

    def call(self, head: str, arguments: list[str]) -> None:
        """One argument a line, in the formatter's layout."""
        if not arguments:
            self.line(f"{head}()")
            return
        self.line(f"{head}(")
        for argument in arguments:
            self.line(f"    {argument},")
        self.line(")")


def _variant(prefix: str, kind: str, compact: bool, null: bool) -> str:
    return f"{prefix}_{'compact_' if compact else ''}{'nullable_' if null else ''}{kind}"


def _call(verb: str, struct: Struct, suffix: str) -> str:
    """The expression that calls a struct's reader or writer, without its arguments."""
    return f"{'yield from ' if struct.stepped else ''}_{verb}_{snake(struct.name)}{suffix}"


def _item(struct: Struct) -> str:
    """The name of a variable for one element: short enough for its line."""
    name = snake(struct.name)
    return name if len(name) <= 32 else "_".join(name.split("_")[-2:])


def _runs(fields: list[Field], width_max: int) -> Iterator[list[Field]]:
    """Fields in their order; neighbouring fixed-width fields with the same versions together."""
    run: list[Field] = []
    for field in fields:
        if run and (
            not field.fixed or field.versions != run[0].versions or sum(len(x.name) + 8 for x in [*run, field]) > width_max
        ):
            yield run
            run = []
        run.append(field)
        if not field.fixed:
            yield run
            run = []
    if run:
        yield run


class Reading:
    """The reader function of a struct. `suffix`: the end of its name."""

    def __init__(self, out: Writer, suffix: str = "") -> None:
        self.out = out
        self.suffix = suffix

    def function(self, struct: Struct, *, is_root: bool) -> None:
        out = self.out
        result = f"tuple[{struct.name}, int]"
        if struct.stepped or is_root:
            result = f"{out.use('Steps')}[{result}]"
        out.use("Buffer")
        out.head(f"_read_{snake(struct.name)}{self.suffix}", "buf: Buffer, pos: int, version: int", result)
        out.depth += 1
        if is_root and not struct.stepped:
            out.line("yield 1")
        for run in _runs(struct.plain, 80):
            self.run(run, struct.reach)
        self.tags(struct)
        out.call(f"result = {struct.name}", [f"{x.name}={x.name}" for x in struct.fields])
        out.line("return result, pos")
        out.depth -= 1

    def run(self, run: list[Field], within: Versions) -> None:
        out = self.out
        condition = run[0].versions.condition(within)
        if condition is None:
            self.fields(run, run[0].versions, declare=True)
            return
        for field in run:
            out.line(f"{field.name}: {field.type} = {field.default_value}")
        out.block(f"if {condition}:", lambda: self.fields(run, run[0].versions, declare=False))

    def fields(self, run: list[Field], versions: Versions, declare: bool) -> None:
        out = self.out
        if run[0].fixed:
            packer = out.packer(run)
            names = ", ".join(x.name for x in run)
            target = f"({names},)" if len(run) == 1 else names
            out.line(f"{target} = {packer}.unpack_from(buf, pos)")
            out.line(f"pos += {sum(FIXED[x.kind][2] for x in run)}")
        else:
            self.field(run[0], versions, declare)

    def field(self, one: Field, versions: Versions, declare: bool) -> None:
        out = self.out
        name = one.name
        if one.array:
            self.array(one, versions, declare)
        elif one.struct is not None and one.ever_null:
            # KIP-893: a struct that may be null has a byte before it, negative for null.
            assert one.nullable == one.versions
            if declare:
                out.line(f"{name}: {one.type} = None")
            out.line("pos += 1")
            out.line("if buf[pos - 1] < 0x80:")
            out.line(f"    {name}, pos = {_call('read', one.struct, self.suffix)}(buf, pos, version)")
        elif one.struct is not None:
            out.line(f"{name}, pos = {_call('read', one.struct, self.suffix)}(buf, pos, version)")
        elif one.kind == "uuid":
            out.line(f"{name}, pos = {out.use('read_uuid')}(buf, pos)")
        else:
            ops = {v: _variant("read", one.kind, v in one.flexible, v in one.nullable) for v in versions}
            if declare and len(set(ops.values())) > 1:
                out.line(f"{name}: {one.type}")
            out.chain({v: f"{name}, pos = {out.use(op)}(buf, pos)" for v, op in ops.items()})

    def array(self, field: Field, versions: Versions, declare: bool) -> None:
        out = self.out
        name = field.name
        ops = {v: _variant("read", "count", v in field.flexible, v in field.nullable) for v in versions}
        size = field.element_size_min()
        out.chain({v: f"length, pos = {out.use(op)}(buf, pos, {size})" for v, op in ops.items()})
        if field.ever_null:
            out.line(f"{name}: {field.type} = None" if declare else f"{name} = None")
            out.block("if length >= 0:", lambda: self.elements(field, versions))
        else:
            self.elements(field, versions, declare)

    def elements(self, field: Field, versions: Versions, declare: bool = False) -> None:
        out = self.out
        name = field.name
        out.line(f"{name}: list[{field.element_type}] = []" if declare else f"{name} = []")
        out.line(f"for step in {out.use('steps')}(length):")
        out.depth += 1
        out.line("yield step")
        if field.kind in ("int8", "int32", "int64"):
            out.line(f"portion, pos = {out.use('read_' + field.kind + 's')}(buf, pos, step)")
            out.line(f"{name} += portion")
        else:
            out.line("for _ in range(step):")
            out.depth += 1
            if field.struct is not None:
                item = _item(field.struct) if _item(field.struct) != name else f"some_{name}"
                out.line(f"{item}, pos = {_call('read', field.struct, self.suffix)}(buf, pos, version)")
            else:
                assert field.kind == "string"
                item = "text"
                ops = {v: _variant("read", "string", v in field.flexible, False) for v in versions}
                out.chain({v: f"text, pos = {out.use(op)}(buf, pos)" for v, op in ops.items()})
            out.line(f"{name}.append({item})")
            out.depth -= 1
        out.depth -= 1

    def tags(self, struct: Struct) -> None:
        out = self.out
        flexible = struct.flexible & struct.reach
        if not list(flexible):
            return
        for field in struct.tagged:
            out.line(f"{field.name}: {field.type} = {field.default_value}")
        condition = flexible.condition(struct.reach)
        if condition is None:
            self.tag_section(struct)
        else:
            out.block(f"if {condition}:", lambda: self.tag_section(struct))

    def tag_section(self, struct: Struct) -> None:
        out = self.out
        if not struct.tagged:
            out.line(f"pos = {out.use('skip_tags')}(buf, pos)")
            return
        out.line(f"tags, pos = {out.use('read_tag_count')}(buf, pos)")
        out.line("for _ in range(tags):")
        out.depth += 1
        out.line(f"tag, size, start = {out.use('read_tag')}(buf, pos)")
        out.line("pos = start")
        for index, field in enumerate(struct.tagged):
            test = f"tag == {field.tag}"
            condition = field.versions.condition(struct.flexible & struct.reach)
            if condition is not None:
                test += f" and {condition}"
            out.block(
                f"{'if' if index == 0 else 'elif'} {test}:",
                lambda field=field: self.fields([field], field.versions, declare=False),  # type: ignore[misc]
            )
        out.block("else:", lambda: out.line("pos += size"))
        out.block("if pos != start + size:", lambda: out.line(f"raise {out.use('wrong_tag_size')}(tag, size, pos - start)"))
        out.depth -= 1


class Writing:
    """The writer function of a struct. `suffix`: the end of its name."""

    def __init__(self, out: Writer, suffix: str = "") -> None:
        self.out = out
        self.suffix = suffix

    def function(self, struct: Struct, *, is_root: bool) -> None:
        out = self.out
        result = f"{out.use('Steps')}[None]" if struct.stepped or is_root else "None"
        out.head(f"_write_{snake(struct.name)}{self.suffix}", f"out: bytearray, value: {struct.name}, version: int", result)
        out.depth += 1
        start = len(out.lines)
        if is_root and not struct.stepped:
            out.line("yield 1")
        for run in _runs(struct.plain, 72):
            self.run(run, struct)
        self.tags(struct)
        if len(out.lines) == start:
            out.line("pass")
        out.depth -= 1

    def run(self, run: list[Field], struct: Struct) -> None:
        out = self.out
        condition = run[0].versions.condition(struct.reach)
        if condition is None:
            self.fields(run)
            return
        out.block(f"if {condition}:", lambda: self.fields(run))
        self.refuse([x for x in run if not x.ignorable], struct)

    def refuse(self, fields: list[Field], struct: Struct) -> None:
        """The branch for versions that do not have these fields, and must not drop them silently."""
        out = self.out

        def raise_for(field: Field) -> None:
            out.line(f'raise {out.use("unsupported")}("{struct.name}", "{field.name}", version)')

        if len(fields) == 1:
            out.block(f"elif {fields[0].not_default('value.' + fields[0].name)}:", lambda: raise_for(fields[0]))
        elif fields:
            out.line("else:")
            out.depth += 1
            for field in fields:
                out.block(f"if {field.not_default('value.' + field.name)}:", lambda field=field: raise_for(field))  # type: ignore[misc]
            out.depth -= 1

    def fields(self, run: list[Field], target: str = "out") -> None:
        out = self.out
        if run[0].fixed:
            values = ", ".join(f"value.{x.name}" for x in run)
            out.line(f"{target} += {out.packer(run)}.pack({values})")
        else:
            self.field(run[0], target)

    def field(self, one: Field, target: str) -> None:
        out = self.out
        value = f"value.{one.name}"
        if one.array:
            self.array(one, target)
        elif one.struct is not None and one.ever_null:
            out.line(f"if {value} is None:")
            out.line(f'    {target} += b"\\xff"')
            out.line("else:")
            out.line(f"    {target}.append(1)")
            out.line(f"    {_call('write', one.struct, self.suffix)}({target}, {value}, version)")
        elif one.struct is not None:
            out.line(f"{_call('write', one.struct, self.suffix)}({target}, {value}, version)")
        elif one.kind == "uuid":
            out.line(f"{target} += {value}.bytes")
        else:
            ops = {}
            for v in one.versions:
                null = v in one.nullable
                given = value if null or not one.ever_null else f"{out.use('present')}({value})"
                kind = "bytes" if one.kind == "records" else one.kind
                ops[v] = f"{out.use(_variant('write', kind, v in one.flexible, null))}({target}, {given})"
            out.chain(ops)

    def array(self, field: Field, target: str) -> None:
        out = self.out
        name = f"value.{field.name}"
        if not field.ever_null:
            self.count(field, f"len({name})", target, field.versions)
            self.elements(field, name, target)
            return
        if field.nullable != field.versions:
            items = field.name
            out.line(f"{items} = {name}")
            condition = field.nullable.condition(field.versions)
            assert condition is not None and condition.startswith("version >= ")
            unknown = condition.replace(">=", "<")
            out.block(f"if {items} is None and {unknown}:", lambda: out.line(f"{items} = {out.use('present')}({items})"))
        else:
            items = name
        out.line(f"if {items} is None:")
        out.depth += 1
        self.count(field, "-1", target, field.nullable)
        out.depth -= 1
        out.line("else:")
        out.depth += 1
        self.count(field, f"len({items})", target, field.versions)
        self.elements(field, items, target)
        out.depth -= 1

    def count(self, field: Field, count: str, target: str, versions: Versions) -> None:
        out = self.out
        out.chain({v: f"{out.use(_variant('write', 'count', v in field.flexible, False))}({target}, {count})" for v in versions})

    def elements(self, field: Field, items: str, target: str) -> None:
        out = self.out
        some = f"some_{field.name}"
        out.line(f"for {some} in {out.use('portions')}({items}):")
        out.depth += 1
        out.line(f"yield len({some})")
        if field.kind in ("int8", "int32", "int64"):
            out.line(f"{out.use('write_' + field.kind + 's')}({target}, {some})")
        elif field.struct is not None:
            item = _item(field.struct)
            out.line(f"for {item} in {some}:")
            out.line(f"    {_call('write', field.struct, self.suffix)}({target}, {item}, version)")
        else:
            out.line(f"for text in {some}:")
            out.depth += 1
            ops = {v: _variant("write", "string", v in field.flexible, False) for v in field.versions}
            out.chain({v: f"{out.use(op)}({target}, text)" for v, op in ops.items()})
            out.depth -= 1
        out.depth -= 1

    def tags(self, struct: Struct) -> None:
        out = self.out
        flexible = struct.flexible & struct.reach
        if not list(flexible):
            return
        condition = flexible.condition(struct.reach)
        if condition is None:
            self.tag_section(struct)
        else:
            out.block(f"if {condition}:", lambda: self.tag_section(struct))
        for field in struct.tagged:
            if not field.ignorable and field.versions != struct.reach:
                absent = field.versions.condition(struct.reach)
                assert absent is not None and absent.startswith("version >= "), absent
                out.block(
                    f"if {absent.replace('>=', '<')} and {field.not_default('value.' + field.name)}:",
                    lambda field=field: out.line(f'raise {out.use("unsupported")}("{struct.name}", "{field.name}", version)'),  # type: ignore[misc]
                )

    def tag_section(self, struct: Struct) -> None:
        out = self.out
        if not struct.tagged:
            out.line("out.append(0)")
            return
        out.line("tags = 0")
        out.line("tagged = bytearray()")
        for field in struct.tagged:
            test = field.not_default(f"value.{field.name}")
            condition = field.versions.condition(struct.flexible & struct.reach)
            if condition is not None:
                test = f"{condition} and {test}"
            out.line(f"if {test}:")
            out.depth += 1
            out.line("tags += 1")
            out.line("body = bytearray()")
            self.fields([field], target="body")
            out.line(f"{out.use('write_tag')}(tagged, {field.tag}, body)")
            out.depth -= 1
        out.line(f"{out.use('write_uvarint')}(out, tags)")
        out.line("out += tagged")


def _dataclass(out: Writer, struct: Struct, attributes: Callable[[], None] | None = None) -> None:
    """A struct's class; with attributes it is a whole message."""
    out.line("@dataclass(slots=True, kw_only=True)")
    out.line(f"class {struct.name}{'' if attributes is None else '(Message)'}:")
    out.depth += 1
    out.doc(struct.about)
    if struct.about:
        out.line()
    if attributes is None and not struct.fields:
        out.line("pass")
    for field in struct.fields:
        out.line(f"{field.name}: {field.type} = {field.default_clause}")
        versions = field.versions.condition(struct.reach)
        note = ""
        if versions is not None:
            low, high = field.versions.lowest, field.versions.highest
            note = f" (v{low})" if low == high else f" (v{low}-v{high})" if high != struct.reach.highest else f" (v{low}+)"
        out.doc(field.about.removesuffix(".") + note)
    if attributes is not None:
        attributes()
    out.depth -= 1


def _functions(message: Message, *, whole: bool) -> tuple[bool, bool]:
    """Whether a message is read, and whether it is written."""
    reads = whole or message.name.endswith("Request") or message.name in READ_ONLY
    writes = whole or message.name.endswith("Response")
    return reads, writes


def _message_attributes(out: Writer, message: Message, *, reads: bool, writes: bool, carried: int | None) -> None:
    low, high = message.versions.lowest, message.versions.highest
    if message.root.fields:
        out.line()
    if message.api_key is not None:
        out.line(f"API_KEY = {message.api_key}")
    out.line(f"VERSIONS = ({low}, {high})")
    flexible = list(message.flexible & message.versions)
    if flexible:
        out.line(f"FLEXIBLE_FROM = {flexible[0]}")
    name = snake(message.name)
    if reads:
        out.line(f"_read = staticmethod(_read_{name})")
    if writes:
        out.line(f"_write = staticmethod(_write_{name})")
    if carried is not None:
        out.line(f"CARRIED = {carried}")
        verb = "write" if message.name.endswith("Request") else "read"
        out.line(f"_{verb}_carried = staticmethod(_{verb}_{name}_carried)")


def generate(module: str, *, whole: bool = False) -> str:
    """The text of `messages/<snake of module>.py`.

    Args:
        whole: with both directions in all versions, as `tests/support/messages.py` needs it.
    """
    messages = [load(name) for name in MESSAGES[module]]
    carried = None if whole else CARRIED.get(module)
    out = Writer()
    shared: dict[str, Struct] = {}
    written: set[str] = set()
    for message in messages:
        reads, writes = _functions(message, whole=whole)
        for struct in message.structs:  # a struct of both messages is written once, and must be the same in both
            assert shared.setdefault(struct.name, struct) == struct, struct.name
        fresh = [x for x in message.structs if x.name not in written]
        for struct in fresh:
            _spaced(out)
            _dataclass(out, struct)
        written.update(x.name for x in fresh)
        for struct in [*message.structs, message.root]:
            is_root = struct is message.root
            if reads and f"_read_{struct.name}" not in written:
                _spaced(out)
                Reading(out).function(struct, is_root=is_root)
            if writes and f"_write_{struct.name}" not in written:
                _spaced(out)
                Writing(out).function(struct, is_root=is_root)
            written.update(f"_{verb}_{struct.name}" for verb, does in (("read", reads), ("write", writes)) if does)
        if carried is not None:
            parts = narrowed(message, carried)
            way = Writing if message.name.endswith("Request") else Reading
            for struct in parts:
                _spaced(out)
                way(out, "_carried").function(struct, is_root=struct is parts[-1])
        _spaced(out)
        _dataclass(
            out,
            message.root,
            lambda message=message, reads=reads, writes=writes: _message_attributes(  # type: ignore[misc]
                out, message, reads=reads, writes=writes, carried=carried
            ),
        )
    return _head(module, out) + "\n".join(out.lines) + "\n"


def _spaced(out: Writer) -> None:
    out.line()
    out.line()


def _head(module: str, out: Writer) -> str:
    """The beginning of a module: text, imports and packers."""
    body = "\n".join(out.lines)
    head = Writer()
    names = " and ".join(MESSAGES[module])
    for line in textwrap.wrap(f'"""{names}. Generated by generate.py from Kafka\'s schema: do not edit."""', _LINE_MAX):
        head.line(line)
    head.line()
    head.line("from __future__ import annotations")
    head.line()
    if out.packers:
        head.line("import struct")
    head.line(f"from dataclasses import dataclass{', field' if 'field(default_factory' in body else ''}")
    if re.search(r"\bUUID\b", body):
        head.line("from uuid import UUID")
    if "ZERO_UUID" in body:
        out.use("ZERO_UUID")
    head.line()
    if "Steps" in out.used:
        head.line("from headgate.broker.runtime.steps import Steps")
    head.line("from headgate.broker.wire.kafka.message import Message")
    # ruff's order: constants, classes, functions
    used = sorted(out.used - {"Steps"}, key=lambda x: (0 if x.isupper() else 1 if x[0].isupper() else 2, x))
    if used:
        head.line("from headgate.broker.wire.kafka.primitives import (")
        for name in used:
            head.line(f"    {name},")
        head.line(")")
    if out.packers:
        head.line()
    for name, code in sorted(out.packers.items()):
        head.line(f'{name} = struct.Struct("{code}")')
    return "\n".join(head.lines) + "\n"


def generate_all() -> dict[str, str]:
    """File names in `messages/` and their text."""
    init = '"""Kafka\'s messages, one module per API. Generated by generate.py from Kafka\'s schemas: do not edit."""\n'
    return {"__init__.py": init} | {f"{snake(module)}.py": generate(module) for module in MESSAGES if module not in IN_MEMORY}


def main() -> int:
    folder = Path(__file__).parent / "messages"
    folder.mkdir(exist_ok=True)
    files = generate_all()
    for stale in folder.glob("*.py"):
        if stale.name not in files:
            stale.unlink()
    for name, text in files.items():
        (folder / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
