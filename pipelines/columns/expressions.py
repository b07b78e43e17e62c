"""Spark's expressions on Arrow columns: those with provably the same meaning.

Spark resolves names, types and casts; this module reads the resolved tree (Catalyst's `toJSON`: nodes in pre-order, each with its
number of children). A node without an equal in Arrow raises `UnlikeError`, and the flood keeps Spark's rows. Nothing here does I/O
or knows Spark: trees are plain data, and go to the tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute

from headgate.broker.log.column_schema import whole
from headgate.broker.log.java_numbers import java_text
from headgate.broker.log.json_rows import UnlikeJavaError, dates, is_writable, json_rows
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.columns import headers
from headgate.pipelines.columns.errors import UnlikeError
from headgate.pipelines.columns.kinds import (
    DECIMAL,
    FLOATS,
    HEADERS,
    INTEGERS,
    KINDS,
    TIMESTAMP,
    arrow_type,
    kind_of,
    shape_of,
)
from headgate.pipelines.columns.texts import TYPES, typed

arrow: Any = pa
pc: Any = pyarrow.compute

Value: TypeAlias = Any
"""A pyarrow array, or a scalar for a constant."""

DECIMALS_IN_FULL = 6
"""With so many digits behind the point, no decimal is printed with a power of ten (`java.math.BigDecimal.toString`)."""
ROW = "\0row"
"""A column that every source has: the number of the row, in the order of the files' paths. No column of a file has such a name."""
ROW_OUTPUT = "_tie_source"
"""The output that orders the records of a flood without event time."""
PAIRS = "pairs"
"""What a constant array of pairs of texts has in place of a value that can be read."""
IN_PAIRS = ("binary", "boolean", *INTEGERS, "string")
"""Kinds of the names and contents of headers."""
UTC = frozenset(("UTC", "GMT", "Z", "Etc/UTC", "+00:00"))


@dataclass(frozen=True, slots=True)
class Node:
    """A call of a function in `_FUNCTIONS`, a column (`name`), or a constant (`value`). `kind`: Spark's name of its type."""

    function: str
    kind: str
    arguments: tuple[Node, ...] = ()
    name: str = ""
    value: Any = None

    def parts(self) -> Iterator[Node]:
        """The expression and all expressions inside it."""
        yield self
        for argument in self.arguments:
            yield from argument.parts()

    def without_casts(self, kinds: Collection[str] | None = None) -> Node:
        """The expression inside all casts, or inside those to `kinds`."""
        node = self
        while node.function == "cast" and (kinds is None or node.kind in kinds):
            node = node.arguments[0]
        return node

    def columns(self) -> frozenset[str]:
        """The columns that the expression reads."""
        return frozenset(part.name for part in self.parts() if part.function == "column")

    def reads_times(self, *, in_lines: bool) -> bool:
        """True when this part makes a time of text, in the session's zone. `in_lines`: the source's columns are text."""
        if self.function == "cast" and self.kind == "timestamp" and self.arguments[0].kind == "string":
            return True
        return self.kind == "timestamp" and (self.function == "constant" or (in_lines and self.function == "column"))

    def of(self, columns: Mapping[str, Value]) -> Value:
        """The expression's value. `columns`: arrays of equal length. Raises InvalidError when it has none, as Spark would."""
        if self.function == "column":
            return columns[self.name]
        if self.function == "constant":
            return arrow.scalar(self.value, arrow_type(self.kind))
        try:
            return _FUNCTIONS[self.function](self, *(argument.of(columns) for argument in self.arguments))
        except pa.ArrowInvalid as error:
            raise InvalidError(Reason.INVALID_RECORD, f"an expression has no value for a row: {error}") from error


def array_of(node: Node, columns: Mapping[str, Value], rows: int) -> Any:
    """The expression's value as an array of `rows` values, in one piece."""
    value = node.of(columns)
    if isinstance(value, pa.Scalar):
        return arrow.repeat(value, rows)
    return whole(value)


@dataclass(frozen=True, slots=True)
class Query:
    """The query of a flood: the rows that pass all `filters`, with these outputs by name."""

    outputs: dict[str, Node]
    filters: tuple[Node, ...]
    source: dict[str, str]
    """The source's columns that the query can read: name, and Spark's name of the type."""

    @property
    def has_headers(self) -> bool:
        return HEADERS in self.outputs

    @property
    def is_by_row(self) -> bool:
        """True when the records have no event time: the rows' numbers order them."""
        return ROW_OUTPUT in self.outputs

    def parts(self) -> Iterator[Node]:
        """All expressions of the query."""
        for expression in (*self.filters, *self.outputs.values()):
            yield from expression.parts()

    def columns(self, *outputs: str) -> list[str]:
        """The source's columns that the filters and these outputs read, in a fixed order."""
        wanted = (*self.filters, *(self.outputs[name] for name in outputs))
        return sorted(frozenset[str]().union(*(expression.columns() for expression in wanted)))


def read_query(plan: Sequence[Mapping[str, Any]]) -> Query:
    """The query of an optimized plan: projections and filters above one relation. Raises UnlikeError for any other.

    Args:
        plan: `toJSON` of the plan.
    """
    filters: list[Node] = []
    outputs: dict[str, Node] = {}
    known: dict[int, Node] = {}
    source = {ROW: "long"}
    for place, row in enumerate(reversed(plan)):
        name = _class(row)
        if row["num-children"] != (place > 0):
            raise UnlikeError("the source is not a single set of files")
        if place == 0:
            if name != "LogicalRelation":
                raise UnlikeError(f"the source is not files: {name}")
            for tree in row["output"]:
                column = _attribute(tree[0])
                known[column[0]] = column[1]
                source[column[1].name] = column[1].kind
        elif name == "Project":
            outputs = {}
            made = {}
            for tree in row["projectList"]:
                identity, label, node = _named(tree, known)
                made[identity] = outputs[label] = node
            known = made
        elif name == "Filter":
            filters += _conjuncts(_expression(row["condition"], known))
        else:
            raise UnlikeError(f"the source needs Spark's {name}")
    numbered = [*filters, *(node for name, node in outputs.items() if name != ROW_OUTPUT)]
    if any(ROW in node.columns() for node in numbered):
        raise UnlikeError("Spark's numbers of the rows are not known on columns")
    return Query(outputs, tuple(filters), source)


def _conjuncts(node: Node) -> list[Node]:
    return [part for value in node.arguments for part in _conjuncts(value)] if node.function == "and" else [node]


def _class(row: Mapping[str, Any]) -> str:
    return str(row["class"]).rpartition(".")[2]


def _identity(row: Mapping[str, Any]) -> int:
    return int(row["exprId"]["id"])


def _attribute(row: Mapping[str, Any]) -> tuple[int, Node]:
    return _identity(row), Node("column", _kind(row), name=row["name"])


def _kind(row: Mapping[str, Any]) -> str:
    """The name of a node's type."""
    return kind_of(row["dataType"])


def _named(tree: Sequence[Mapping[str, Any]], known: Mapping[int, Node]) -> tuple[int, str, Node]:
    """(identity, name, expression) of one output of a projection."""
    top = tree[0]
    node = _expression(tree[1:] if _class(top) == "Alias" else tree, known)
    return _identity(top), str(top["name"]), node


def _expression(tree: Sequence[Mapping[str, Any]], known: Mapping[int, Node]) -> Node:
    rows = iter(tree)
    node = _read(rows, known)
    assert next(rows, None) is None, "a tree has one root"
    return node


def _read(rows: Any, known: Mapping[int, Node]) -> Node:
    row = next(rows)
    name = _class(row)
    if name == "Invoke":
        return _json(row, rows, known)
    if name == "ArrayTransform":
        return _headers(rows, known)
    arguments = tuple(_read(rows, known) for _ in range(row["num-children"]))
    if name == "AttributeReference":
        return readable(known[_identity(row)])
    if name == "Literal":
        return _constant(row)
    if name == "MonotonicallyIncreasingID":
        return Node("column", "long", name=ROW)
    if name in _COMPARISONS:
        return comparison(name, arguments)
    if name in _LOGIC:
        return Node(_LOGIC[name], "boolean", arguments)
    if name == "In":
        equal = [comparison("EqualTo", (arguments[0], argument)) for argument in arguments[1:]]
        return reduce(lambda left, right: Node("or", "boolean", (left, right)), equal)
    if name == "Cast":
        return cast(arguments[0], _kind(row), row.get("timeZoneId"))
    if name in _TIMES and arguments[0].kind in INTEGERS:
        return Node("time", "timestamp", arguments, value=_TIMES[name])
    if name == "Coalesce":
        return Node("coalesce", arguments[0].kind, arguments)
    if name == "Concat" and all(argument.kind in ("string", "binary") for argument in arguments):
        return Node("concat", arguments[0].kind, arguments)
    raise UnlikeError(f"Spark's {name} is not computed on columns")


def readable(column: Node) -> Node:
    """A column with an equal Arrow type that expressions read. Raises UnlikeError for another one."""
    if arrow_type(column.kind) is None or shape_of(column.kind):
        raise UnlikeError(f"column `{column.name}` is of type {column.kind.partition(' ')[0]}")
    return column


def printable(column: Node) -> Node:
    """A column that JSON can have. Raises UnlikeError for another one."""
    kind = arrow_type(column.kind)
    if kind is None or not is_writable(kind):
        raise UnlikeError(
            f"column `{column.name}` is of type {column.kind.partition(' ')[0]}, or has parts, that only Spark writes"
        )
    return column


def comparison(name: str, sides: tuple[Node, ...]) -> Node:
    """A comparison by Catalyst's name of it. Raises UnlikeError for sides that Arrow compares in another way."""
    if sides[0].kind != sides[1].kind:
        raise UnlikeError(f"Spark's {name} of two types")
    if sides[0].kind in FLOATS:
        raise UnlikeError(f"Spark's {name} of floating-point numbers")
    return Node(name, "boolean", sides)


def _constant(row: Mapping[str, Any]) -> Node:
    kind, text = _kind(row), row["value"]
    if text is None and arrow_type(kind) is not None:
        return Node("constant", kind)
    if kind in INTEGERS:
        return Node("constant", kind, value=int(text))
    if kind == "boolean":
        return Node("constant", kind, value=str(text) == "true")
    if kind == "string":
        return Node("constant", kind, value=str(text))
    if kind in ("date", "timestamp"):
        try:
            value = arrow.scalar(str(text)).cast(pa.timestamp("us")).cast(pa.date32() if kind == "date" else pa.timestamp("us"))
        except pa.ArrowInvalid:
            raise UnlikeError(f"a constant is before the year 1 or after 9999: {text}") from None
        return Node("constant", kind, value=value.as_py() if kind == "date" else value.value)
    if kind == "timestamp_ntz":
        return Node("constant", kind, value=int(text))
    raise UnlikeError(f"a constant is of type {kind}")


def _json(row: Mapping[str, Any], rows: Any, known: Mapping[int, Node]) -> Node:
    """`to_json` of a struct of columns, without options. `rows`: the nodes behind the call's own."""
    evaluator = next(rows)
    text = str(evaluator.get("value"))
    if row["num-children"] != 2 or not text.startswith("StructsToJsonEvaluator(Map(),"):
        raise UnlikeError(f"Spark's {row.get('functionName')} is not computed on columns")
    if not any(text.endswith(f",Some({zone}))") for zone in UTC):
        raise UnlikeError("times are printed in the session's zone")
    struct = next(rows)
    if _class(struct) != "CreateNamedStruct":
        raise UnlikeError("Spark makes the JSON of a nested column")
    names, fields = [], []
    for number in range(struct["num-children"]):
        if number % 2:
            row = next(rows)
            if _class(row) != "AttributeReference":
                raise UnlikeError("Spark makes the JSON of an expression")
            fields.append(printable(known[_identity(row)]))
            if fields[-1].function != "column":
                raise UnlikeError("Spark makes the JSON of an expression")
        else:
            names.append(_read(rows, known))
    return row_as_json([name.value for name in names], fields)


def row_as_json(names: Iterable[str], columns: Iterable[Node]) -> Node:
    """The JSON of a row of these columns."""
    return Node("json", "string", tuple(columns), value=tuple(names))


def _headers(rows: Any, known: Mapping[int, Node]) -> Node:
    """`transform` of pairs, as `plan.records` writes it for a flood's headers. `rows`: the nodes behind the call's own."""
    pairs = _pairs(rows, known)
    if _class(next(rows)) != "LambdaFunction" or _class(next(rows)) != "CreateNamedStruct":
        raise UnlikeError("Spark's ArrayTransform is not computed on columns")
    _, name, _, content = (_of_pair(rows) for _ in range(4))
    next(rows)  # the variable that stands for a pair
    found = Node(pairs.function, HEADERS, pairs.arguments, value=(name, content))
    if pairs.function == "constant":
        columns = [arrow.array([pair[place] for pair in pairs.value], pa.string()) for place in (0, 1)]
        return Node("constant", HEADERS, value=_headers_of(found, arrow.array([len(pairs.value)]), *columns)[0].as_py())
    return found


def _of_pair(rows: Any) -> Node:
    """An expression of the fields of one pair."""
    row = next(rows)
    if _class(row) == "Cast":
        return cast(_of_pair(rows), _kind(row), row.get("timeZoneId"))
    if _class(row) == "GetStructField":
        field = next(rows)["dataType"]["fields"][row["ordinal"]]
        if field["type"] not in IN_PAIRS:
            raise UnlikeError(f"headers have names or contents of type {_kind({'dataType': field['type']})}")
        return Node("column", field["type"], name=(headers.NAME, headers.CONTENT)[row["ordinal"]])
    return _constant(row)


def _pairs(rows: Any, known: Mapping[int, Node]) -> Node:
    """A column of pairs, or names and contents by turns."""
    row = next(rows)
    name = _class(row)
    if name == "MapEntries":
        return _pairs(rows, known)
    if name == "Literal" and PAIRS in row:
        return Node("constant", HEADERS, value=row[PAIRS])
    if name == "AttributeReference":
        return Node("headers_of_column", HEADERS, (known[_identity(row)],))
    if name == "CreateMap":
        parts = [_read(rows, known) for _ in range(row["num-children"])]
        names = [part.value for part in parts[::2] if part.function == "constant"]
        if None in names or len(set(names)) < len(parts) // 2:
            raise UnlikeError("a map has names that are not constants, or that repeat")
        return Node("headers_of_values", HEADERS, tuple(parts))
    if name == "CreateArray":
        parts = []
        for _ in range(row["num-children"]):
            pair = next(rows)
            if _class(pair) != "CreateNamedStruct":
                raise UnlikeError(f"Spark's {_class(pair)} of a pair is not computed on columns")
            parts += [_read(rows, known) for _ in range(pair["num-children"])][1::2]
        return Node("headers_of_values", HEADERS, tuple(parts))
    raise UnlikeError(f"Spark's {name} of headers is not computed on columns")


def cast(argument: Node, after: str, zone: str | None) -> Node:
    """A cast to the kind `after`, in a session's zone. Raises UnlikeError for one that Arrow does in another way."""
    before = argument.kind
    if before == after:
        return argument
    if after in ("timestamp", "timestamp_ntz") and before in ("date", "timestamp", "timestamp_ntz"):
        if zone not in UTC and "timestamp" in (before, after):
            raise UnlikeError(f"a time without a zone is in the session's zone. zone=`{zone}`")
        return Node("cast", after, (argument,))
    if before == "string" and after in TYPES and (zone in UTC or after != "timestamp"):
        return Node("cast", after, (argument,))
    widens = before in INTEGERS and after in INTEGERS and INTEGERS.index(before) < INTEGERS.index(after)
    decimal = DECIMAL.fullmatch(before)
    in_full = decimal is not None and int(decimal.group(2)) <= DECIMALS_IN_FULL
    prints = after == "string" and (in_full or before in FLOATS or before in (*INTEGERS, "boolean", "date"))
    if widens or prints or (before, after) in (("string", "binary"), ("float", "double")):
        return Node("cast", after, (argument,))
    raise UnlikeError(f"a cast of {before} to {after} is not computed on columns")


_COMPARISONS = {
    "EqualTo": pc.equal,
    "GreaterThan": pc.greater,
    "GreaterThanOrEqual": pc.greater_equal,
    "LessThan": pc.less,
    "LessThanOrEqual": pc.less_equal,
}
_LOGIC = {"And": "and", "Or": "or", "Not": "not", "IsNull": "is_null", "IsNotNull": "is_not_null"}
_TIMES = {"SecondsToTimestamp": 1_000_000, "MillisToTimestamp": 1_000, "MicrosToTimestamp": 1}
"""Microseconds in one unit of the argument."""


def _compare(node: Node, left: Value, right: Value) -> Value:
    return _COMPARISONS[node.function](left, right)


def _cast_values(node: Node, values: Value) -> Value:
    if node.arguments[0].kind == "string" and node.kind != "binary":
        return typed(values, node.kind, arrow_type(node.kind))
    if node.kind == "string" and node.arguments[0].kind in FLOATS:
        return java_text(values)
    if node.kind == "string" and node.arguments[0].kind == "date":
        return dates(values)
    if node.arguments[0].kind == "boolean":
        return pc.if_else(values, "true", "false")
    return values.cast(arrow_type(node.kind))


def _time(node: Node, values: Value) -> Value:
    return pc.multiply_checked(values.cast(pa.int64()), arrow.scalar(node.value, pa.int64())).cast(TIMESTAMP)


def _concat(node: Node, *values: Value) -> Value:
    separator = arrow.scalar("" if node.kind == "string" else b"", KINDS[node.kind])
    return pc.binary_join_element_wise(*values, separator)


def _json_of(node: Node, *values: Value) -> Value:
    try:
        return json_rows(node.value, values)
    except UnlikeJavaError as error:
        raise UnlikeError(str(error)) from error


def _headers_of(node: Node, counts: Value, names: Value, contents: Value) -> Value:
    of_pair = {headers.NAME: names, headers.CONTENT: contents}
    return headers.headers(counts, *(array_of(value, of_pair, len(names)) for value in node.value))


_FUNCTIONS: dict[str, Callable[..., Value]] = {
    **dict.fromkeys(_COMPARISONS, _compare),
    "and": lambda _, left, right: pc.and_kleene(left, right),
    "or": lambda _, left, right: pc.or_kleene(left, right),
    "not": lambda _, values: pc.invert(values),
    "is_null": lambda _, values: pc.is_null(values),
    "is_not_null": lambda _, values: pc.is_valid(values),
    "cast": _cast_values,
    "time": _time,
    "coalesce": lambda _, *values: pc.coalesce(*values),
    "concat": _concat,
    "json": _json_of,
    "framed": lambda node, *values: node.value.encode(*values),
    "headers_of_column": lambda node, pairs: _headers_of(node, *headers.of_column(pairs)),
    "headers_of_values": lambda node, *values: _headers_of(node, *headers.of_values(values)),
}


def passes(filters: Sequence[Node], columns: Mapping[str, Value]) -> Value | None:
    """Which rows pass all filters (null does not); None without filters."""
    found = [condition.of(columns) for condition in filters]
    return reduce(pc.and_kleene, found) if found else None
