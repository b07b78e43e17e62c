"""The daemon of Spark's Python workers in tests: PySpark's own, which has the modules of a flood's tasks before it forks a worker.

A worker whose task fails ends, and importing these modules takes the next one more than a second of a processor. PySpark imports
them in each worker, because some begin threads; those of NumPy and Arrow do without them after a fork.
"""

from __future__ import annotations

import sys

import pyspark.daemon
import pyspark.worker

import headgate.pipelines.columns.writing
import headgate.pipelines.extent_sink  # noqa: F401

if __name__ == "__main__":
    sys.modules["__main__"].__spec__ = pyspark.daemon.__spec__  # by which the product knows a worker
    pyspark.daemon.manager()
