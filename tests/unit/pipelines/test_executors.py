"""Executors that do not start, or cannot do the tasks, and what a flood says about them. No Spark.

A mismatch means that a flood waits for ever without a word, or that its error does not name the cause.
"""

from __future__ import annotations

import sys

import pytest

from headgate.broker.runtime.errors import InvalidError
from headgate.pipelines.executors import SAY_S, Waiting
from headgate.pipelines.session import worker_python
from headgate.pipelines.spark_errors import spark_errors


@pytest.mark.parametrize(
    "text",
    [
        'java.io.IOException: Cannot run program "/nowhere/python": error=2, No such file or directory',
        "ModuleNotFoundError: No module named 'headgate'",
        "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: 3.11",
    ],
)
def test_an_executor_whose_python_cannot_do_the_tasks(text: str) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(InvalidError) as caught, spark_errors("the flood failed."):
        raise PySparkException(f"Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times\n{text}\n\tat Worker.java")
    assert "spark.pyspark.python" in caught.value.message
    assert text.removeprefix("java.io.IOException: ").removeprefix("ModuleNotFoundError: ") in caught.value.message


def test_the_python_of_the_tasks() -> None:
    setting, variable = {"spark.pyspark.python": "/opt/a"}, {"PYSPARK_PYTHON": "/opt/b"}
    assert worker_python(setting, variable) == "/opt/a"
    assert worker_python({}, variable) == "/opt/b"
    assert worker_python({}, {}) == sys.executable


def test_a_job_without_executors_says_so_and_ends() -> None:
    waiting = Waiting("spark://m:7077", {"spark.executor.memory": "4g", "spark.hadoop.fs.s3a.secret.key": "s"}, 60.0, 0.0)
    assert waiting.look(0, SAY_S - 1) is None
    said = waiting.look(0, SAY_S)
    assert said is not None and said.startswith("no executor for 15 s") and "executor.memory=`4g`" in said
    assert waiting.look(0, SAY_S + 1) is None and waiting.look(1, 59.0) is None
    assert waiting.look(0, 60.0) is None and not waiting.is_over, "the wait begins when the last executor is gone"
    assert waiting.look(0, 119.0) is not None and waiting.is_over
    assert "had no executor of Spark's for 60 s" in waiting.error().message and "secret" not in waiting.error().message
