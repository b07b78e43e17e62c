"""A directory against the memory store: the same calls, in any order, with any keys, give the same answers and the same errors.

Runs: calls that Hypothesis generates; keys consist of few parts, so that they collide, nest and block each other. Compared: the
answers of both stores. A mismatch means that a test on the memory store relies on an answer that a directory does not give.
"""

from __future__ import annotations

import asyncio
import mmap
import tempfile
from collections.abc import Sequence
from typing import TypeAlias

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.store.interface import AppendFile, Buffer, Store
from headgate.broker.store.local import LocalStore
from headgate.broker.store.memory import MemoryStore
from tests.support.examples import examples

Call: TypeAlias = tuple[object, ...]

parts = st.sampled_from(["a", "b", "a-", "a.", "a0", "A", "=", "..."])
keys = st.lists(parts, min_size=1, max_size=3).map("/".join)
wild_keys = keys | st.sampled_from(["", "/", "a/", "a//b", "..", "a/../b", "ä"])
prefixes = keys | keys.map(lambda key: key + "/") | keys.map(lambda key: key[:-1]) | st.just("")
data = st.binary(max_size=6)
few_bytes = st.integers(-1, 9)

calls: st.SearchStrategy[Call] = st.one_of(
    st.tuples(st.just("put"), wild_keys, data),
    st.tuples(st.just("put"), keys, st.lists(data, max_size=3)),
    st.tuples(st.just("put_if_absent"), wild_keys, data),
    st.tuples(st.just("put_if_absent"), keys, st.lists(data, max_size=3)),
    st.tuples(st.just("get"), wild_keys),
    st.tuples(st.just("get_range"), wild_keys, few_bytes, few_bytes),
    st.tuples(st.just("get_ranges"), wild_keys, st.lists(st.tuples(few_bytes, few_bytes), max_size=4)),
    st.tuples(st.just("list"), prefixes, prefixes, st.integers(0, 5)),
    st.tuples(st.just("list"), prefixes, st.just(""), st.just(1000)),
    st.tuples(st.just("delete"), wild_keys),
    st.tuples(st.just("create"), wild_keys, st.integers(0, 20)),
    st.tuples(st.just("write"), st.integers(0, 3), st.integers(0, 20), st.lists(data, max_size=3)),
    st.tuples(st.just("exists"), keys),
)


class Driver:
    """Makes calls on one store and turns their answers into comparable values."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.files: list[AppendFile] = []

    async def run(self, call: Call) -> object:
        name, *arguments = call
        try:
            return await self._run(str(name), arguments)
        except HeadgateError as error:
            return type(error).__name__, error.reason

    async def _run(self, name: str, arguments: Sequence[object]) -> object:
        assert self.store.appender is not None
        if name == "create":
            self.files.append(self.store.appender.create(*arguments))  # type: ignore[arg-type]
            return "created"
        if name == "write":
            number, block, buffers = arguments
            if len(self.files) <= int(number):  # type: ignore[call-overload]
                return "no such file"
            file = self.files[int(number)]  # type: ignore[call-overload]
            unit = file.alignment_bytes
            file.write(int(block) * unit, aligned(buffers, unit))  # type: ignore[call-overload, arg-type]
            return "written"
        if name == "exists":
            return self.store.appender.exists(*arguments)  # type: ignore[arg-type]
        answer = await getattr(self.store, name)(*arguments)
        if name == "list":
            return [(row.key, row.size_bytes) for row in answer]
        return answer

    async def close(self) -> None:
        for file in self.files:
            file.close()
        await self.store.close()


def aligned(buffers: Sequence[bytes], alignment_bytes: int) -> Sequence[Buffer]:
    """What a file of this alignment accepts: these buffers, or one buffer of whole pages that begins with their bytes."""
    if alignment_bytes == 1:
        return buffers
    joined = b"".join(buffers)
    pages = mmap.mmap(-1, max(1, -(-len(joined) // alignment_bytes)) * alignment_bytes)
    pages[: len(joined)] = joined
    return [memoryview(pages)]


async def compare(made: Sequence[Call], root: str) -> None:
    local = Driver(LocalStore(root, fsync="never"))
    assert local.store.appender is not None
    # The directory's alignment depends on its file system: whether that supports O_DIRECT.
    probe = local.store.appender.create("probe", 0)
    memory = Driver(MemoryStore(alignment_bytes=probe.alignment_bytes))
    probe.close()
    await local.store.delete("probe")
    deleted = False
    try:
        for call in [*made, ("list", "", "", 1000)]:
            if call[0] == "write" and deleted:
                continue  # a file was deleted under its writer: a directory stops the broker, memory does not notice
            deleted = deleted or call[0] in ("delete", "put")
            expected, answer = await memory.run(call), await local.run(call)
            assert answer == expected, call
    finally:
        await memory.close()
        await local.close()
    # Another process reads the same.
    again = Driver(LocalStore(root))
    try:
        memory.store = MemoryStore(memory.store._objects)  # type: ignore[attr-defined]
        listing = ("list", "", "", 1000)
        rows = await again.run(listing)
        assert rows == await memory.run(listing)
        assert isinstance(rows, list)
        for key, _ in rows:
            assert await again.run(("get", key)) == await memory.run(("get", key))
    finally:
        await again.store.close()


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(calls, max_size=30))
def test_a_directory_answers_as_memory_does(made: list[Call]) -> None:
    with tempfile.TemporaryDirectory() as root:
        asyncio.run(compare(made, root + "/store"))
