"""The memory that a flood's Python workers need, from the settings of a session that does not exist yet."""

from __future__ import annotations

import re

import pytest

from headgate.broker.runtime.errors import InvalidError
from headgate.pipelines.columns.memory import Machine, Need, limits_of, need_of, size_of, way

GIB = 1 << 30
MACHINE = Machine(cores=8, memory_bytes=16 * GIB, heap_bytes=4 * GIB)
EACH = 1280 << 20


@pytest.mark.parametrize(
    ("master", "conf", "expected", "short"),
    [
        ("local[*]", {}, Need(EACH, 8), None),
        ("local[2, 3]", {}, Need(EACH, 2), None),
        ("local", {}, Need(EACH, 1), None),
        ("local[*]", {"spark.headgate.taskMemory": "64m"}, Need(320 << 20, 8), None),
        ("local[16]", {}, Need(EACH, 16), "16 tasks at a time may take 24576 MiB .* 16384 MiB"),
        ("spark://a:7077", {}, Need(EACH, None), None),
        ("spark://a:7077", {"spark.executor.cores": "4"}, Need(EACH, 4), None),
        ("yarn", {}, Need(EACH, 1), "1 tasks .* 1280 MiB .* 384 MiB .* set spark.executor.memoryOverhead to 1280m"),
        ("yarn", {"spark.executor.memoryOverhead": "2g"}, Need(EACH, 1), None),
        ("yarn", {"spark.executor.memoryOverhead": "1280"}, Need(EACH, 1), None),
        ("yarn", {"spark.executor.cores": "2", "spark.executor.memoryOverhead": "2g"}, Need(EACH, 2), "2560 MiB"),
        ("k8s://https://a", {"spark.executor.memory": "4g"}, Need(EACH, 1), None),
        (
            "k8s://https://a",
            {"spark.executor.memoryOverheadFactor": "0.2", "spark.executor.pyspark.memory": "1g"},
            Need(EACH, 1),
            None,
        ),
    ],
    ids=str,
)
def test_what_a_large_flood_needs(master: str, conf: dict[str, str], expected: Need, short: str | None) -> None:
    found = need_of(master, conf, MACHINE, 100 * GIB)
    assert (found.task_bytes, found.tasks) == (expected.task_bytes, expected.tasks)
    assert (found.short is None) if short is None else (re.search(short, found.short or "") is not None)


def test_a_small_flood_needs_little() -> None:
    assert need_of("local[16]", {}, MACHINE, 1 << 20).short is None
    assert need_of("yarn", {}, MACHINE, 1 << 20).short is None


def test_tasks_of_executors_elsewhere_say_what_each_needs() -> None:
    assert "MiB" not in way("local[2]", limits_of("16m"))
    assert way("local-cluster[1,2,1024]", limits_of("16m")).endswith(
        "each task at a time needs up to 272 MiB of its executor's spark.executor.memoryOverhead"
    )
    assert way("spark://a:7077", limits_of(None)).endswith("1280 MiB beside its executor's heap")


def test_a_setting_that_cannot_be() -> None:
    with pytest.raises(InvalidError, match="16m to 8g"):
        need_of("local[*]", {"spark.headgate.taskMemory": "1t"}, MACHINE, GIB)


@pytest.mark.parametrize(
    ("text", "size"), [("512m", 512 << 20), ("2gb", 2 << 30), ("7", 7 << 20), ("1T", 1 << 40), ("", None), ("x", None)]
)
def test_sizes_are_those_of_spark(text: str, size: int | None) -> None:
    assert size_of(text) == size
