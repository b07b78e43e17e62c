"""Kafka's message schemas as objects, from which `generate.py` writes code. Only the generator imports this module.

The rules for defaults and null are those of Kafka's own generator (generator/.../FieldSpec.java).
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib import resources

FIXED = {
    "bool": ("?", "bool", 1),
    "int8": ("b", "i8", 1),
    "int16": ("h", "i16", 2),
    "uint16": ("H", "u16", 2),
    "int32": ("i", "i32", 4),
    "int64": ("q", "i64", 8),
    "float64": ("d", "f64", 8),
}
"""Fixed-width types: struct code, name in a Struct's name, bytes."""

RENAMED = {("AlterClientQuotasResponse", "EntryData"): "EntryResult"}
"""Parts of a response with the name of another part of its request: they share a module."""

RESERVED = {"buf", "pos", "version", "length", "tags", "tag", "size", "start", "text", "result", "step", "portion"}
"""Names that the generated readers use themselves."""


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


@dataclass(frozen=True)
class Versions:
    """A contiguous range of versions; may be empty."""

    lowest: int
    highest: int

    @classmethod
    def parse(cls, text: str) -> Versions:
        if text == "none":
            return cls(0, -1)
        low, dash, high = text.removesuffix("+").partition("-")
        return cls(int(low), int(high) if dash else 0x7FFF if text.endswith("+") else int(low))

    def __and__(self, other: Versions) -> Versions:
        return Versions(max(self.lowest, other.lowest), min(self.highest, other.highest))

    def __contains__(self, version: int) -> bool:
        return self.lowest <= version <= self.highest

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.lowest, self.highest + 1))

    def condition(self, within: Versions) -> str | None:
        """The test that tells these versions from the others in `within`, or None if there are no others."""
        inside = self & within
        if inside == within:
            return None
        if inside.lowest == inside.highest:
            return f"version == {inside.lowest}"
        if inside.highest == within.highest:
            return f"version >= {inside.lowest}"
        if inside.lowest == within.lowest:
            return f"version <= {inside.highest}"
        return f"{inside.lowest} <= version <= {inside.highest}"


@dataclass
class Struct:
    """A message or one of its parts. `reach` is the union of all versions in which a field holds it."""

    name: str
    about: str = field(compare=False)
    reach: Versions
    flexible: Versions
    fields: list[Field] = field(default_factory=list)

    @property
    def plain(self) -> list[Field]:
        return [x for x in self.fields if x.tag is None]

    @property
    def tagged(self) -> list[Field]:
        return sorted((x for x in self.fields if x.tag is not None), key=lambda x: x.tag or 0)

    @property
    def stepped(self) -> bool:
        """Whether it has an array, directly or in a part of it: then it is read and written in steps."""
        return any(x.array or (x.struct is not None and x.struct.stepped) for x in self.fields)

    def size_min(self) -> int:
        """The smallest number of bytes of its encoding, over all versions."""
        return max(1, min(sum(x.size_min(v) for x in self.plain) + (v in self.flexible) for v in self.reach))


@dataclass
class Field:
    name: str
    about: str = field(compare=False)
    kind: str  # the type of an array's elements
    array: bool
    struct: Struct | None
    versions: Versions
    nullable: Versions
    flexible: Versions
    tag: int | None
    ignorable: bool
    default: str | None

    @property
    def ever_null(self) -> bool:
        return bool(list(self.nullable & self.versions))

    @property
    def fixed(self) -> bool:
        return self.kind in FIXED and not self.array

    @property
    def null_default(self) -> bool:
        return self.default == "null" or (self.kind == "records" and self.default is None)

    def size_min(self, version: int) -> int:
        if version not in self.versions:
            return 0
        if self.fixed:
            return FIXED[self.kind][2]
        if self.kind == "uuid" and not self.array:
            return 16
        if self.struct is not None and not self.array:
            return 1 if version in self.nullable else self.struct.size_min()
        if version in self.flexible:
            return 1
        return 2 if self.kind == "string" and not self.array else 4

    def element_size_min(self) -> int:
        if self.struct is not None:
            return self.struct.size_min()
        if self.kind in FIXED:
            return FIXED[self.kind][2]
        return {"string": 1, "uuid": 16}[self.kind]

    # -- in Python

    @property
    def element_type(self) -> str:
        if self.struct is not None:
            return self.struct.name
        if self.kind in FIXED:
            return {"bool": "bool", "float64": "float"}.get(self.kind, "int")
        return {"string": "str", "bytes": "bytes", "records": "Buffer", "uuid": "UUID"}[self.kind]

    @property
    def type(self) -> str:
        text = f"list[{self.element_type}]" if self.array else self.element_type
        return f"{text} | None" if self.ever_null else text

    @property
    def default_value(self) -> str:
        """The default as an expression that makes a new object."""
        if self.null_default:
            return "None"
        if self.array:
            return "[]"
        if self.struct is not None:
            return f"{self.struct.name}()"
        if self.kind == "bool":
            return str((self.default or "false").lower() == "true")
        if self.kind == "float64":
            return str(float(self.default or "0"))
        if self.kind in FIXED:
            return str(int(self.default or "0", 0))
        return {"string": json.dumps(self.default or ""), "bytes": 'b""', "uuid": "ZERO_UUID"}[self.kind]

    @property
    def default_clause(self) -> str:
        if self.array and not self.null_default:
            return "field(default_factory=list)"
        if self.struct is not None and not self.null_default:
            return f"field(default_factory={self.struct.name})"
        return self.default_value

    def not_default(self, value: str) -> str:
        """A test whether `value` differs from the default."""
        default = self.default_value
        if default == "None":
            return f"{value} is not None"
        if default in ("0", "0.0", "False", '""', "[]", 'b""') and not self.ever_null:
            return value
        return f"not {value}" if default == "True" else f"{value} != {default}"


@dataclass
class Message:
    name: str
    api_key: int | None
    versions: Versions
    flexible: Versions
    root: Struct
    structs: list[Struct]  # parts first


def load(name: str) -> Message:
    """The message of that name, from Kafka's schema. `schemas/` has those that kafka-python does not have."""
    own = resources.files("headgate.broker.wire.kafka").joinpath("schemas", f"{name}.json")
    text = (own if own.is_file() else resources.files("kafka.protocol.schemas.resources").joinpath(f"{name}.json")).read_text()
    schema = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    valid = Versions.parse(schema["validVersions"])
    flexible = Versions.parse(schema["flexibleVersions"])
    structs: dict[str, Struct] = {}
    common = {entry["name"]: entry["fields"] for entry in schema.get("commonStructs", ())}

    def make_struct(struct_name: str, about: str, fields: list[dict[str, object]], reach: Versions) -> Struct:
        struct_name = RENAMED.get((name, struct_name), struct_name)
        struct = Struct(struct_name, about, reach, flexible)
        for entry in fields:
            versions = Versions.parse(str(entry["versions"])) & reach
            if not list(versions):
                continue  # versions that Kafka itself has dropped
            kind = str(entry["type"])
            array = kind.startswith("[]")
            kind = kind.removeprefix("[]")
            part = None
            if kind[0].isupper():
                about = str(entry.get("about", ""))
                if "fields" in entry:
                    part = make_struct(kind, about, entry["fields"], versions)  # type: ignore[arg-type]
                else:
                    part = structs.get(kind) or make_struct(kind, about, common[kind], valid)
            default = entry.get("default")
            nullable = Versions.parse(str(entry.get("nullableVersions", "none"))) & versions
            own_flexible = Versions.parse(str(entry.get("flexibleVersions", schema["flexibleVersions"])))
            field_name = snake(str(entry["name"]))
            assert field_name not in RESERVED and not keyword.iskeyword(field_name), field_name
            struct.fields.append(
                Field(
                    name=field_name,
                    about=str(entry.get("about", "")),
                    kind=kind,
                    array=array,
                    struct=part,
                    versions=versions,
                    nullable=nullable,
                    flexible=own_flexible,
                    tag=entry.get("tag"),  # type: ignore[arg-type]
                    ignorable=bool(entry.get("ignorable", False)),
                    default=None if default is None else str(default),
                )
            )
        assert struct_name not in structs, struct_name
        structs[struct_name] = struct
        return struct

    root = make_struct(name, "", schema["fields"], valid)
    del structs[name]
    return Message(name, schema.get("apiKey"), valid, flexible, root, list(structs.values()))


def narrowed(message: Message, version: int) -> list[Struct]:
    """The structs of a message as one version has them: parts first, the message last. Fields of other versions are left out."""
    versions = Versions(version, version)
    made: dict[str, Struct] = {}

    def narrow(struct: Struct) -> Struct:
        if struct.name not in made:
            fields = [
                replace(x, versions=versions, nullable=x.nullable & versions, struct=None if x.struct is None else narrow(x.struct))
                for x in struct.fields
                if version in x.versions
            ]
            made[struct.name] = replace(struct, reach=versions, fields=fields)
        return made[struct.name]

    narrow(message.root)
    return list(made.values())
