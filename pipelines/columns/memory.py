"""What the tasks of a flood on columns need of memory, from a session's settings, before there is a session. Pure.

Spark's settings of memory are those of JVMs. A task's rows are in its Python worker, beside the heap.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.columns.task_division import MEMORY_BYTES_MAX, MEMORY_BYTES_MIN, PYTHON_BYTES, Limits
from headgate.pipelines.session import is_local

MEMORY_SETTING = "spark.headgate.taskMemory"
"""Setting of a Spark session: memory of the rows of one task in its Python worker, such as ``512m``."""
OVERHEAD = "spark.executor.memoryOverhead"
"""Memory of an executor's container beside the heap."""
ROWS_FACTOR = 6
"""Bytes that a task takes for each byte of rows, at most: their sort up to four times as many, and files in the making."""
EXECUTOR_HEAP_BYTES = 1 << 30
OVERHEAD_BYTES_MIN = 384 << 20
"""Spark's own defaults on YARN and Kubernetes."""
_SIZE = re.compile(r"(\d{1,12})([kmgt]?)b?")
_SHIFTS = {"k": 10, "m": 20, "g": 30, "t": 40}
_FACTORS = {"k8s": 0.4, "yarn": 0.1}
"""Shares of the heap that an executor's container has beside it, by the kind of the master. Only these two end containers that take
more memory."""


def size_of(text: str, *, shift: int = 20) -> int | None:
    """A size as Spark reads it, in bytes; None if it is none. `shift`: of a number without a unit, in most settings MiB."""
    found = _SIZE.fullmatch(text.strip().lower())
    return None if found is None else int(found.group(1)) << _SHIFTS.get(found.group(2), shift)


def limits_of(text: str | None) -> Limits:
    """The memory of a task by the setting `MEMORY_SETTING`. Raises InvalidError for a size that cannot be."""
    if text is None:
        return Limits()
    memory = size_of(text, shift=0) or 0
    if not MEMORY_BYTES_MIN <= memory <= MEMORY_BYTES_MAX:
        span = f"{MEMORY_BYTES_MIN >> 20}m to {MEMORY_BYTES_MAX >> 30}g"
        raise InvalidError(Reason.INVALID_CONFIG, f"the memory of a flood's task is {span}. {MEMORY_SETTING}=`{text}`")
    return Limits(memory)


def way(master: str, limits: Limits) -> str:
    """What tasks on columns do, and on a cluster what each of them needs."""
    said = "tasks work on columns, with Arrow"
    if is_local(master):
        return said
    place = "beside its executor's heap" if master.startswith("spark://") else f"of its executor's {OVERHEAD}"
    return f"{said}; each task at a time needs up to {(PYTHON_BYTES + limits.memory_bytes) >> 20} MiB {place}"


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of the driver. `heap_bytes`: of the driver's JVM."""

    cores: int
    memory_bytes: int
    heap_bytes: int


@dataclass(frozen=True, slots=True)
class Need:
    """The memory that Python workers need.

    `tasks`: those at a time on one machine or in one executor; None if the session's settings do not say. `short`: what to change,
    if there is less memory than that.
    """

    task_bytes: int
    tasks: int | None
    short: str | None = None


def need_of(master: str, conf: Mapping[str, str], machine: Machine, source_bytes: int) -> Need:
    """The need of a flood with these settings of its session.

    Args:
        source_bytes: of the rows. A small source needs less than a task may take.

    Raises InvalidError for a setting that cannot be.
    """
    limits = limits_of(conf.get(MEMORY_SETTING))
    each = PYTHON_BYTES + limits.memory_bytes
    if is_local(master):
        slots = slots_of(master, machine.cores)
        taken = machine.heap_bytes + slots * PYTHON_BYTES + min(slots * limits.memory_bytes, ROWS_FACTOR * source_bytes)
        if taken <= machine.memory_bytes:
            return Need(each, slots)
        return Need(
            each,
            slots,
            f"{slots} tasks at a time may take {taken >> 20} MiB with Spark's heap, and this machine has "
            f"{machine.memory_bytes >> 20} MiB: give them less ({MEMORY_SETTING}), or run fewer (master `local[n]`)",
        )
    cores = conf.get("spark.executor.cores")
    kind = master.partition(":")[0]
    tasks = int(cores) if cores is not None and cores.isdigit() else 1 if kind in _FACTORS else None
    if kind not in _FACTORS or tasks is None:
        return Need(each, tasks)
    taken = tasks * PYTHON_BYTES + min(tasks * limits.memory_bytes, ROWS_FACTOR * source_bytes)
    given = _overhead(kind, conf)
    if taken <= given:
        return Need(each, tasks)
    return Need(
        each,
        tasks,
        f"an executor's {tasks} tasks at a time may take {taken >> 20} MiB beside its heap, and its container has "
        f"{given >> 20} MiB for that: set {OVERHEAD} to {taken >> 20}m, or give tasks less ({MEMORY_SETTING})",
    )


def slots_of(master: str, cores: int) -> int:
    """Tasks at a time of a local master."""
    found = re.match(r"local\[(\d+|\*)", master)
    if found is None:
        return 1
    return cores if found.group(1) == "*" else int(found.group(1))


def _overhead(kind: str, conf: Mapping[str, str]) -> int:
    """Memory of an executor's container beside the heap, with what is set apart for Python."""
    python = size_of(conf.get("spark.executor.pyspark.memory", "0")) or 0
    stated = size_of(conf.get(OVERHEAD, ""))
    if stated is not None:
        return stated + python
    heap = size_of(conf.get("spark.executor.memory", ""), shift=20) or EXECUTOR_HEAP_BYTES
    factor = conf.get("spark.executor.memoryOverheadFactor", "")
    share = float(factor) if re.fullmatch(r"\d*\.?\d+", factor) else _FACTORS[kind]
    return max(int(heap * share), OVERHEAD_BYTES_MIN) + python
