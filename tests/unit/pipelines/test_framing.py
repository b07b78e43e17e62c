"""Keys and values in a schema registry's frame.

Compared: the bytes of columns with what fastavro and Protobuf's own library read, and write, of the same rows; schemas of columns
with the same; messages about columns that do not fit. A mismatch means that consumers fail on the first record of history.
"""

from __future__ import annotations

import base64
import io
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from jsonschema import Draft7Validator

from headgate.broker.runtime.errors import FatalError, HeadgateError, InvalidError, RetryError
from headgate.broker.schemas import registry
from headgate.broker.schemas.decoder import Decoder
from headgate.pipelines.framing import json_schema, protobuf_schema
from headgate.pipelines.framing.avro import Avro, derived
from headgate.pipelines.framing.bytes_of_columns import varints, zigzag
from headgate.pipelines.framing.declared import Framing
from headgate.pipelines.framing.frame import frame
from headgate.pipelines.framing.protobuf import Protobuf
from tests.support import registry as support
from tests.support.registry import FakeRegistry, proto_descriptor

arrow: Any = pa
ROWS = 300
ITEM = arrow.struct([("x", pa.string())])
STRUCT = arrow.struct([("a", pa.int32()), ("in", pa.list_(ITEM))])
EDGES = [0, -1, 1, 63, 64, -64, -65, 127, 128, 1 << 31, 1 << 62, -(1 << 63), (1 << 63) - 1]
UNSCALED = [0, 1, -1, 127, 128, -128, -129, 255, 256, 32767, 32768, -32768, -32769, 10**15, -(10**15)]


def sparse(make: Any, every: int = 5) -> list[Any]:
    """Values of rows, some of them missing."""
    return [None if row % every == 0 else make(row) for row in range(ROWS)]


def lake() -> dict[str, Any]:
    """A column for each kind of value."""
    chance = random.Random(7)
    return {
        "ok": arrow.array(sparse(lambda row: row % 2 == 0)),
        "small": arrow.array([row % 100 - 50 for row in range(ROWS)], pa.int8()),
        "number": arrow.array([chance.randint(-(1 << 31), (1 << 31) - 1) for _ in range(ROWS)], pa.int32()),
        "large": arrow.array(sparse(lambda row: EDGES[row % len(EDGES)]), pa.int64()),
        "half": arrow.array(sparse(lambda row: row / 4), pa.float32()),
        "share": arrow.array(sparse(lambda row: -0.0 if row % 7 == 0 else row * 1.1)),
        "text": arrow.array(sparse(lambda row: "ü" * (row % 200))),
        "raw": arrow.array(sparse(lambda row: bytes([row % 256]) * (row % 70)), pa.binary()),
        "at": arrow.array(sparse(lambda row: -(10**12) + row * 10**10 + row), pa.timestamp("us", "UTC")),
        "local": arrow.array([-5 - row for row in range(ROWS)], pa.timestamp("us")),
        "day": arrow.array(sparse(lambda row: date(1960, 1, 1) + timedelta(days=row * 100)), pa.date32()),
        "price": arrow.array(sparse(lambda row: Decimal(UNSCALED[row % len(UNSCALED)]).scaleb(-3)), pa.decimal128(20, 3)),
        "words": arrow.array(sparse(lambda row: [None if at % 2 else f"w{at}" for at in range(row % 4)]), pa.list_(pa.string())),
        "counts": arrow.array(
            sparse(lambda row: [(f"k{at}", at or None) for at in range(row % 4)]), pa.map_(pa.string(), pa.int64())
        ),
        "place": arrow.array(sparse(lambda row: {"a": row, "in": [{"x": None if row % 2 else "q"}] * (row % 3)}), STRUCT),
    }


def types_of(columns: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one.type for name, one in columns.items()}


def rows_of(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    return pa.table(dict(columns)).to_pylist()


def test_varints_of_every_width() -> None:
    values = [0, *(1 << bits for bits in range(63)), *((1 << bits) - 1 for bits in range(1, 64))]
    for some in (values, [5], []):
        found = varints(np.array(some, np.int64)).to_pylist()
        assert [int.from_bytes(bytes(b & 0x7F for b in one[:1]), "little") for one in found] == [one & 0x7F for one in some]
        assert [len(one) for one in found] == [max(-(-one.bit_length() // 7), 1) for one in some]
        assert [sum((byte & 0x7F) << 7 * at for at, byte in enumerate(one)) for one in found] == some
    assert varints(np.array([-1])).to_pylist() == [b"\xff" * 9 + b"\x01"]
    assert zigzag(np.array([0, -1, 1, -2, -(1 << 63)])).to_pylist()[:4] == [b"\0", b"\1", b"\2", b"\3"]


# -- Avro


def avro_rows(schema: str, data: Any) -> list[Any]:
    parsed = fastavro.parse_schema(json.loads(schema))
    found = []
    for one in data.to_pylist():
        stream = io.BytesIO(one)
        found.append(fastavro.schemaless_reader(stream, parsed, None))
        assert not stream.read(), "bytes are left"
    return found


@pytest.mark.parametrize("first", [0, 13])
def test_every_kind_of_column_as_avro(first: int) -> None:
    columns = {name: one.slice(first) for name, one in lake().items()}
    schema = derived(types_of(columns), "web.clicks-1")
    made = Avro(schema)
    assert made.problems(types_of(columns)) == []
    wanted = [{**row, "counts": None if row["counts"] is None else dict(row["counts"])} for row in rows_of(columns)]
    assert avro_rows(schema, made.encode(columns)) == wanted


def written(schema: Any, rows: Sequence[Any]) -> list[bytes]:
    """As fastavro writes them."""
    parsed, found = fastavro.parse_schema(schema), []
    for row in rows:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, parsed, row)
        found.append(stream.getvalue())
    return found


RECORD: dict[str, Any] = {
    "type": "record", "name": "Clicks", "namespace": "web",
    "fields": [
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["view", "buy"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 3}},
        {"name": "ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "last", "type": ["string", "null"]},
        {"name": "either", "type": ["null", "long", "string"]},
        {"name": "amount",
         "type": {"type": "fixed", "name": "Amount", "size": 5, "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "other", "type": "web.Kind", "default": "buy"},
        {"name": "gone", "type": ["null", "string"], "default": None},
        {"name": "none", "type": {"type": "array", "items": "int"}, "default": []},
        {"name": "inner", "type": {"type": "record", "name": "Inner", "fields": [{"name": "n", "type": "double", "default": 1.5}]},
         "default": {}},
        {"name": "list", "type": {"type": "array", "items": {"type": "map", "values": "int"}}},
    ],
}  # fmt: skip


def test_a_schema_that_is_there_already() -> None:
    """Unions in any order, defaults for columns that the source has not, names used again."""
    columns = {
        "kind": arrow.array(["buy", "view"] * 50), "hash": arrow.array([b"abc"] * 100, pa.binary()),
        "ms": arrow.array([1_700_000_000_123_900 + at for at in range(100)], pa.timestamp("us", "UTC")),
        "last": arrow.array([None, "x"] * 50), "either": arrow.array([None, "text"] * 50),
        "amount": arrow.array([Decimal("-1.25"), Decimal("1234567.89")] * 50, pa.decimal128(9, 2)),
        "list": arrow.array([[[("a", 1)], []], []] * 50, pa.list_(pa.map_(pa.string(), pa.int32()))),
    }  # fmt: skip
    made = Avro(json.dumps(RECORD))
    assert made.problems(types_of(columns)) == [] and made.fields[:2] == ["kind", "hash"]
    rows = [
        {**row, "ms": row["ms"].replace(microsecond=123_000), "list": [dict(one) for one in row["list"]], "other": "buy",
         "gone": None, "none": [], "inner": {"n": 1.5}}
        for row in rows_of({**columns, "ms": arrow.array([1_700_000_000_123_000] * 100, pa.timestamp("us", "UTC"))})
    ]  # fmt: skip
    assert made.encode({**columns, "unknown": columns["kind"]}).to_pylist() == written(RECORD, rows)


def test_keys_are_values_without_a_record() -> None:
    some = ("string", ["a", "üü"]), ("long", [1, -5]), (["null", "string"], ["a", None])
    for kind, column in ((kind, arrow.array(values)) for kind, values in some):
        made = Avro(json.dumps(kind))
        assert not made.is_record and made.problems({"user": column.type}) == []
        assert made.encode({"user": column}).to_pylist() == written(kind, column.to_pylist())


def test_schemas_that_use_others() -> None:
    other = json.dumps({"type": "record", "name": "shared.Point", "fields": [{"name": "x", "type": "int"}]})
    schema = json.dumps({"type": "record", "name": "T", "fields": [{"name": "at", "type": "shared.Point"}]})
    made = Avro(schema, [other])
    assert made.encode({"at": arrow.array([{"x": 3}], arrow.struct([("x", pa.int32())]))}).to_pylist() == [b"\x06"]
    assert "int is wanted, the column is of int64" in made.problems({"at": arrow.struct([("x", pa.int64())])})[0]
    with pytest.raises(InvalidError, match="uses a type that nothing defines"):
        Avro(schema).problems({"at": pa.int32()})


@pytest.mark.parametrize(
    ("field", "column", "why"),
    [
        ("long", arrow.array([None, 1]), "a value is missing, and the schema wants one. field=`f`"),
        ({"type": "enum", "name": "E", "symbols": ["a"]}, arrow.array(["a", "b"]), "the schema has no such symbol: b"),
        ({"type": "fixed", "name": "F", "size": 2}, arrow.array([b"ab", b"abc"], pa.binary()), "has 3 bytes, the schema wants 2"),
        ({"type": "array", "items": "int"}, arrow.array([[1], [None]], pa.list_(pa.int32())), "is missing.*field=`f\\[\\]`"),
        ({"type": "fixed", "name": "F", "size": 1, "logicalType": "decimal", "precision": 5, "scale": 0},
         arrow.array([Decimal(1), Decimal(128)], pa.decimal128(5, 0)), "a number needs more than 1 bytes"),
    ],
)  # fmt: skip
def test_rows_that_do_not_fit_name_their_field(field: Any, column: Any, why: str) -> None:
    made = Avro(json.dumps({"type": "record", "name": "T", "fields": [{"name": "f", "type": field}]}))
    assert made.problems({"f": column.type}) == []
    with pytest.raises(InvalidError, match=why):
        made.encode({"f": column})


@pytest.mark.parametrize(
    ("field", "kind", "why"),
    [
        ("int", pa.int64(), "int is wanted, the column is of int64"),
        ("string", pa.int32(), "string is wanted, the column is of int32"),
        ("long", pa.timestamp("us", "UTC"), "a time needs the logical type timestamp-micros or timestamp-millis"),
        ({"type": "long", "logicalType": "timestamp-micros"}, pa.timestamp("us"), "is wanted, the column is of timestamp"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, pa.decimal128(9, 3), "decimal"),
        (["null", "int", "string"], pa.float64(), "a column of double fits none of null, int, string"),
        ({"type": "array", "items": "int"}, pa.string(), "a list is wanted"),
        ({"type": "map", "values": "int"}, pa.map_(pa.int32(), pa.int32()), "a map with texts as keys is wanted"),
        ({"type": "record", "name": "R", "fields": [{"name": "user", "type": "int"}]}, arrow.struct([("usr", pa.int32())]),
         "the source has no such column, and the schema no default for it: did you mean `usr`? field=`f.user`"),
    ],
)  # fmt: skip
def test_columns_that_do_not_fit_are_found_before_any_row(field: Any, kind: Any, why: str) -> None:
    (found,) = Avro(json.dumps({"type": "record", "name": "T", "fields": [{"name": "f", "type": field}]})).problems({"f": kind})
    assert why in found and "field=`f" in found


@pytest.mark.parametrize("text", ["no JSON", "[]x", '{"type": "record"}', '{"type": "record", "name": "T", "fields": 5}'])
def test_texts_that_are_no_schema(text: str) -> None:
    with pytest.raises(InvalidError, match="no Avro schema"):
        Avro(text)


# -- Protobuf


PROTO = """syntax = "proto3"; package web;
import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";
message Clicks {
  bool ok = 1; int32 number = 2; int64 large = 3; float half = 4; double share = 5; string text = 6; bytes raw = 7;
  google.protobuf.Timestamp at = 8; optional int64 some = 9; sint64 signed = 10; fixed64 wide = 11; sfixed32 narrow = 12;
  uint32 unsigned = 13; Kind kind = 14; repeated int64 list = 15; repeated string words = 16; map<string, int64> counts = 17;
  Inner place = 18; google.protobuf.StringValue maybe = 19; repeated Inner places = 20; optional string own = 200;
  map<int32, Inner> by_number = 21; repeated double shares = 22; repeated int32 apart = 23 [packed = false];
}
enum Kind { NONE = 0; VIEW = 5; BUY = -1; }
message Inner { int32 a = 1; string x = 2; }
"""


def message_class(descriptor: bytes) -> Any:
    from google.protobuf import timestamp_pb2, wrappers_pb2

    pool: Any = descriptor_pool.DescriptorPool()
    for module in (timestamp_pb2, wrappers_pb2):
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        pool.Add(file)
    file = descriptor_pb2.FileDescriptorProto.FromString(descriptor)
    pool.Add(file)
    return message_factory.GetMessageClass(next(iter(pool.FindFileByName(file.name).message_types_by_name.values())))


def proto_columns() -> dict[str, Any]:
    chance = random.Random(3)
    inner = arrow.struct([("a", pa.int32()), ("x", pa.string())])

    def between(low: int, high: int) -> list[Any]:
        return sparse(lambda _: chance.choice([0, 1, low, high, chance.randint(low, high)]))

    full = lake()
    return {
        **{name: full[name] for name in ("ok", "number", "large", "half", "share", "text", "raw", "at")},
        "some": arrow.array(sparse(lambda row: row % 3 - 1), pa.int64()),
        "signed": arrow.array(between(-(1 << 63), (1 << 63) - 1), pa.int64()),
        "wide": arrow.array(between(0, 1 << 62), pa.int64()), "narrow": arrow.array(between(-(1 << 31), (1 << 31) - 1), pa.int32()),
        "unsigned": arrow.array(between(0, (1 << 31) - 1), pa.int32()),
        "kind": arrow.array(sparse(lambda row: ("NONE", "VIEW", "BUY")[row % 3])),
        "list": arrow.array(sparse(lambda row: list(range(row % 4))), pa.list_(pa.int64())),
        "words": arrow.array(sparse(lambda row: ["w"] * (row % 3)), pa.list_(pa.string())),
        "counts": arrow.array(sparse(lambda row: [("k", row % 2)] * (row % 2)), pa.map_(pa.string(), pa.int64())),
        "place": arrow.array(sparse(lambda row: {"a": row % 2, "x": None if row % 3 else "z"}), inner),
        "maybe": arrow.array(sparse(lambda row: "m" * (row % 2))),
        "places": arrow.array(sparse(lambda row: [{"a": at, "x": "y"} for at in range(row % 3)]), pa.list_(inner)),
        "own": arrow.array(sparse(lambda row: "o" * (row % 2))),
        "by_number": arrow.array(sparse(lambda row: [(0, {"a": 0, "x": "y"})] * (row % 2)), pa.map_(pa.int32(), inner)),
        "shares": arrow.array(sparse(lambda row: [1.5] * (row % 3)), pa.list_(pa.float64())),
        "apart": arrow.array(sparse(lambda row: [row, 0][: row % 3]), pa.list_(pa.int32())),
    }  # fmt: skip


def proto_message(kind: Any, row: Mapping[str, Any]) -> Any:
    """A row as Protobuf's own library sets it."""
    made = kind()
    for name, value in row.items():
        if value is None:
            continue
        field = made.DESCRIPTOR.fields_by_name[name]
        if name == "at":
            made.at.FromDatetime(value)
        elif name == "kind":
            made.kind = field.enum_type.values_by_name[value].number
        elif name == "maybe":
            made.maybe.value = value
            made.maybe.SetInParent()
        elif name == "counts":
            made.counts.update(dict(value))
        elif name == "by_number":
            for number, inner in value:
                made.by_number[number].a, made.by_number[number].x = inner["a"], inner["x"]
        elif name in ("place", "places"):
            for one in value if name == "places" else [value]:
                inside = made.places.add() if name == "places" else made.place
                inside.SetInParent()
                json_format.ParseDict({key: part for key, part in one.items() if part is not None}, inside)
        elif isinstance(value, list):
            getattr(made, name).extend(value)
        else:
            setattr(made, name, value)
    return made


@pytest.mark.parametrize("first", [0, 7])
def test_every_kind_of_field_as_protobuf(first: int) -> None:
    descriptor = proto_descriptor(PROTO, {})
    made, kind = Protobuf(base64.b64encode(descriptor).decode()), message_class(descriptor)
    columns = {name: one.slice(first) for name, one in proto_columns().items()}
    assert made.problems(types_of(columns)) == []
    for data, row in zip(made.encode(columns).to_pylist(), rows_of(columns), strict=True):
        assert data == proto_message(kind, row).SerializeToString(deterministic=True), row


def test_a_message_of_columns() -> None:
    """The text, the descriptor beside it, and what both say of a row are one."""
    columns = {name: one for name, one in lake().items() if name not in ("local", "day", "price", "words")}
    columns["list"] = arrow.array(sparse(lambda row: [row, 0][: row % 3]), pa.list_(pa.int64()))
    columns["counts"] = arrow.array(sparse(lambda row: [("k", row)] * (row % 2)), pa.map_(pa.string(), pa.int64()))
    text, descriptor = protobuf_schema.derived(types_of(columns), "web.clicks-1")
    kinds = [message_class(proto_descriptor(text, {})), message_class(base64.b64decode(descriptor))]
    made = Protobuf(descriptor)
    assert made.problems(types_of(columns)) == [] and made.message.name == "WebClicks1"
    for data, row in zip(made.encode(columns).to_pylist(), rows_of(columns), strict=True):
        for kind in kinds:
            found = kind.FromString(data)
            assert found.HasField("large") is (row["large"] is not None)
            for name in ("ok", "number", "large", "half", "share", "text", "raw"):
                assert row[name] is None or getattr(found, name) == row[name]
            assert list(found.list) == (row["list"] or []) and dict(found.counts) == dict(row["counts"] or [])
            if row["place"] is not None:
                assert found.place.a == row["place"]["a"] and [one.x for one in getattr(found.place, "in")] == [
                    one["x"] or "" for one in row["place"]["in"]
                ]
            assert row["at"] is None or found.at.ToDatetime(row["at"].tzinfo) == row["at"]


@pytest.mark.parametrize(
    ("name", "column", "why"),
    [
        ("unsigned", arrow.array([5, -1], pa.int32()), "a number is negative"),
        ("kind", arrow.array(["VIEW", "SELL"]), "the schema has no such value: SELL"),
        ("list", arrow.array([[1], [None]], pa.list_(pa.int64())), "a list has a missing value"),
    ],
)
def test_rows_that_do_not_fit_a_message(name: str, column: Any, why: str) -> None:
    made = Protobuf(base64.b64encode(proto_descriptor(PROTO, {})).decode())
    assert made.problems({name: column.type}) == []
    with pytest.raises(InvalidError, match=why):
        made.encode({name: column})


def test_columns_that_do_not_fit_a_message() -> None:
    made = Protobuf(base64.b64encode(proto_descriptor(PROTO, {})).decode())
    bad = {
        "number": pa.int64(), "at": pa.timestamp("us"), "text": pa.timestamp("us", "UTC"), "list": pa.int64(),
        "counts": pa.string(), "place": pa.string(), "places": pa.list_(pa.string()), "maybe": pa.int32(), "raw": pa.string(),
    }  # fmt: skip
    found = made.problems(bad)
    assert [one.partition("field=`")[2].rstrip("`") for one in found] == [
        "number", "at", "text", "list", "counts", "place", "places[]", "maybe", "raw",
    ]  # fmt: skip
    assert "a time needs a field of google.protobuf.Timestamp" in found[2]
    for text in ("", "!!", base64.b64encode(b"\xff\xff").decode(), base64.b64encode(b"").decode()):
        with pytest.raises(InvalidError, match=r"no Protobuf file|has no message"):
            Protobuf(text)


# -- JSON


def test_the_schema_of_columns_as_json_holds_for_their_rows() -> None:
    from headgate.broker.log.json_rows import json_rows

    columns = {name: one for name, one in lake().items() if name != "price"}
    schema = json.loads(json_schema.derived(types_of(columns), "clicks"))
    judge = Draft7Validator(schema)
    for text in json_rows(list(columns), list(columns.values())).to_pylist():
        judge.validate(json.loads(text))
    with pytest.raises(Exception, match="is not of type"):
        judge.validate({"number": "5"})


def test_columns_are_compared_with_a_schema_of_json() -> None:
    schema = json.dumps(
        {"type": "object", "required": ["user", "n"], "additionalProperties": False,
         "properties": {"user": {"type": "string"}, "n": {"type": ["number", "null"]},
                        "x": {"oneOf": [{"type": "null"}, {"type": "boolean"}]}}}
    )  # fmt: skip
    known, problems = json_schema.judged(schema, {"usr": pa.string(), "n": pa.int32(), "x": pa.int32(), "more": pa.string()})
    assert known == ["n", "x"]
    assert "requires it, and the source has no such column: did you mean `usr`? field=`user`" in problems[0]
    assert "boolean or null is wanted" in problems[1] and len(problems) == 2
    with pytest.raises(InvalidError, match="a value is missing, and the schema requires one"):
        json_schema.check_rows(schema, {"user": arrow.array(["a", None]), "n": arrow.array([1, 2])})


# -- frames and the registry


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    monkeypatch.setattr(registry, "PAUSE_S", 0.01)
    with support.registry() as made:
        yield made


def framing(fake: FakeRegistry, format: Any = "avro", **more: Any) -> Framing:
    return Framing(**{"format": format, "registry": fake.url, "subject": "clicks-value", **more})


COLUMNS = {"user": pa.string(), "n": pa.int64()}


def test_the_newest_schema_decides(fake: FakeRegistry) -> None:
    fake.register("other", '"int"')
    fake.register("clicks-value", derived({"user": pa.string()}, "clicks"))
    second = fake.register("clicks-value", derived({"n": pa.int64(), "user": pa.string()}, "clicks"))
    found = frame(framing(fake), {"more": pa.int32(), **COLUMNS})
    assert (found.schema.id, found.columns) == (second, ("user", "n")) and second == 3
    (data,) = found.encode(arrow.array(["a"]), arrow.array([1])).to_pylist()
    assert data == b"\0\0\0\0\x03" + b"\x02\x02" + b"\x02\x02a"


def test_schemas_are_registered_once(fake: FakeRegistry) -> None:
    for format in ("avro", "protobuf", "json"):
        asked = framing(fake, format, subject=f"{format}-value", register=True)
        first = frame(asked, COLUMNS)
        assert frame(asked, COLUMNS) == first and len(fake.subjects[f"{format}-value"]) == 1
        # What was registered is what the next flood finds there.
        again = frame(framing(fake, format, subject=f"{format}-value"), COLUMNS)
        rows = arrow.array(["a", None]), arrow.array([0, 5])
        assert first.schema.id == again.schema.id and first.encode(*rows).to_pylist() == again.encode(*rows).to_pylist()
    key = frame(framing(fake, subject="clicks-key", register=True), {"user": pa.string()}, is_key=True)
    assert key.encode(arrow.array(["ab"])).to_pylist() == [b"\0" + key.schema.id.to_bytes(4, "big") + b"\x04ab"]


def test_schemas_that_use_others_are_fetched(fake: FakeRegistry) -> None:
    fake.register("point", json.dumps({"type": "record", "name": "shared.Point", "fields": [{"name": "x", "type": "long"}]}))
    text = json.dumps({"type": "record", "name": "T", "fields": [{"name": "at", "type": "shared.Point"}]})
    fake.register("clicks-value", text, references=[{"name": "shared.Point", "subject": "point", "version": 1}])
    found = frame(framing(fake), {"at": arrow.struct([("x", pa.int64())])})
    assert found.encode(arrow.array([{"x": 3}]))[0].as_py()[5:] == b"\x06"
    inner = 'syntax = "proto3"; message Point { int64 x = 1; }'
    fake.register("inner", inner, "PROTOBUF")
    outer = 'syntax = "proto3"; import "inner.proto"; import "google/protobuf/timestamp.proto"; message T { Point at = 1; }'
    fake.register("outer", outer, "PROTOBUF", [{"name": "inner.proto", "subject": "inner", "version": 1}])
    found = frame(framing(fake, "protobuf", subject="outer"), {"at": arrow.struct([("x", pa.int64())])})
    assert found.encode(arrow.array([{"x": 3}]))[0].as_py()[5:] == b"\0\x0a\x02\x08\x03"


def test_what_a_registry_refuses_has_its_message(fake: FakeRegistry) -> None:
    def refused(kind: type[HeadgateError], asked: Framing, columns: Any = None, *, is_key: bool = False) -> str:
        with pytest.raises(kind) as caught:
            frame(asked, columns or COLUMNS, is_key=is_key)
        assert "secret" not in str(caught.value)
        return str(caught.value)

    assert "has no such subject: register a schema" in refused(InvalidError, framing(fake))
    fake.register("clicks-value", derived(COLUMNS, "clicks"))
    assert "another format. subject=`clicks-value` format=`AVRO` wanted=`JSON`" in refused(InvalidError, framing(fake, "json"))
    assert "no column has the name of a field" in refused(InvalidError, framing(fake), {"x": pa.int64()})
    said = refused(InvalidError, framing(fake), {"user": pa.int64(), "n": pa.string()})
    assert said.count("fits none of") == 2 and "schema_id=`1`" in said
    assert "a key is no record" in refused(InvalidError, framing(fake), {"user": pa.string()}, is_key=True)
    fake.closed.add("clicks-value")
    said = refused(InvalidError, framing(fake, register=True), {"z": pa.int64()})
    assert "rule of compatibility refuses the schema of these columns" in said
    assert "Avro has no such name" in refused(InvalidError, framing(fake, register=True), {"a b": pa.int64()})
    fake.broken = 2
    assert frame(framing(fake), COLUMNS).schema.id == 1, "it is asked again"
    fake.broken = registry.TRIES
    assert "the registry fails now: 500" in refused(RetryError, framing(fake))
    fake.login = True
    assert "refuses the login" in refused(FatalError, framing(fake))
    host = fake.url.removeprefix("http://")
    assert frame(framing(fake, registry=f"http://{support.LOGIN}@{host}"), COLUMNS).schema.id == 1
    assert "refuses the login" in refused(FatalError, framing(fake, registry=f"http://web:secret2@{host}"))
    assert "does not answer" in refused(RetryError, framing(fake, registry="http://web:secret@127.0.0.1:1"))


def as_json(value: Any) -> Any:
    """A value as `Decoder` shows it."""
    if isinstance(value, dict):
        return {name: as_json(inside) for name, inside in value.items()}
    if isinstance(value, list):
        return [dict(as_json(pair) for pair in value)] if value and isinstance(value[0], tuple) else [as_json(one) for one in value]
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(timespec="microseconds") + ("" if value.tzinfo is None else "Z")
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return str(value) if isinstance(value, Decimal | date) else value


def test_people_read_messages_as_json(fake: FakeRegistry) -> None:
    columns = lake()
    decoder = Decoder(registry.Registry(fake.url))
    found = frame(framing(fake, register=True), types_of(columns)).encode(*columns.values()).to_pylist()
    for data, row in zip(found, rows_of(columns), strict=True):
        maps = {"counts": None if row["counts"] is None else dict(row["counts"])}
        assert json.loads(decoder.text(data) or b"") == as_json({**row, **maps})
    some = {name: columns[name] for name in ("text", "number", "place", "at")}
    for format, key in (("protobuf", "google"), ("json", "json")):
        made = frame(framing(fake, format, subject=key, register=True), types_of(some)).encode(*some.values()).to_pylist()
        row = json.loads(decoder.text(made[8]) or b"")
        for wild in (made[8][:-1], made[8][:6] + b"\xff" * 20, made[8][:5] + b"\x0e", made[8][:5]):
            assert decoder.text(wild) == wild
        assert (row["text"], row["number"], row["place"]["a"]) == ("ü" * 8, columns["number"][8].as_py(), 8)
    assert len(fake.asked) < 20, "a schema is fetched once"
    # What does not fit stays as it is.
    fake.register("zero", json.dumps({"type": "array", "items": "null"}))
    huge = b"\0" + len(fake.schemas).to_bytes(4, "big") + zigzag(np.array([1 << 60]))[0].as_py() + b"\0"
    for data in (None, b"", b"\0\0", b"text", b"\0\0\0\xff\xff no such schema", found[5][:-1], found[5] + b"x", huge):
        assert decoder.text(data) == data
    chance = random.Random(5)
    for _ in range(500):
        wild = found[chance.randrange(ROWS)][:5] + chance.randbytes(chance.randrange(60))
        assert decoder.text(wild) is not None
    fake.broken = registry.TRIES
    with pytest.raises(RetryError):
        decoder.text(b"\0\0\0\0\x63" + b"x")


def test_the_environment_may_have_the_login(fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.register("clicks-value", derived(COLUMNS, "clicks"))
    fake.login = True
    monkeypatch.setenv(registry.LOGIN, support.LOGIN)
    assert frame(framing(fake), COLUMNS).schema.id == 1


@pytest.mark.parametrize("url", ["", "host:8081", "ftp://host", "http://"])
def test_a_registry_is_a_url(url: str) -> None:
    with pytest.raises(InvalidError, match="a registry is named by its URL"):
        Framing(format="avro", registry=url, subject="s")
