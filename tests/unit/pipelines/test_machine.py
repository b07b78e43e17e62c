"""The choice of Java, the launch of Spark's JVM, and Kafka's partitioner in numpy. No Spark.

The partitioner is compared with `headgate.broker.log.partitioner`, which foreign clients judge. A mismatch would put records of
one key into different partitions.
"""

from __future__ import annotations

import os
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.broker.log.partitioner import partition_for_key
from headgate.pipelines.extents import by_partition
from headgate.pipelines.java import java_home, java_version, shim
from headgate.pipelines.launch import launch
from headgate.pipelines.murmur2 import kafka_partitions
from headgate.pipelines.session import patient


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("no such thing", None),
    ],
)
def test_java_versions(text: str, version: int | None) -> None:
    assert java_version(text) == version


def fake_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return home


def test_a_good_java_is_left_alone(tmp_path: Path) -> None:
    good, old = fake_java(tmp_path / "good", "21.0.1"), fake_java(tmp_path / "old", "11.0.2")
    path = f"{good}/bin"
    assert java_home({"JAVA_HOME": str(good), "PATH": "/nowhere"}) is None
    assert java_home({"PATH": path}) is None, "Spark finds it by itself"
    assert java_home({"JAVA_HOME": str(old), "PATH": path}) == str(good), "Spark would take the old one"
    assert java_home({"JAVA_HOME": str(tmp_path), "PATH": path}) == str(good)


def test_without_one_the_one_from_pypi_is_used(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")
    home = java_home({"PATH": f"{old}/bin", "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert home is not None and Path(home).is_relative_to(tmp_path / "cache")
    java = Path(home, "bin", "java")
    done = subprocess.run(
        [java, "--add-modules=jdk.incubator.vector", "-Dx=a b", "-version"], capture_output=True, text=True, check=True
    )
    assert (java_version(done.stderr) or 0) >= 17
    before = java.stat().st_mtime_ns
    assert java_home({"PATH": "/nowhere", "XDG_CACHE_HOME": str(tmp_path / "cache")}) == home
    assert java.stat().st_mtime_ns == before, "made once"


def test_the_shim_drops_one_argument_and_keeps_the_rest(tmp_path: Path) -> None:
    home = tmp_path / "it's a java"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text('#!/bin/sh\nfor a in "$@"; do echo "<$a>"; done\n')
    (home / "bin" / "java").chmod(0o755)
    made = shim(home, tmp_path)
    arguments = ["-a", "--add-modules=jdk.incubator.vector", "b c", "", "$HOME"]
    done = subprocess.run([made / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["<-a>", "<b c>", "<>", "<$HOME>"]
    assert not [name for name in os.listdir(made / "bin") if name != "java"]


@pytest.mark.parametrize(("end", "told"), [("exit 3", " jvm=`exit code 3`"), ("kill -KILL $$", " jvm=`ended by SIGKILL`")])
def test_spark_s_jvm_starts_without_a_fork_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, told: str
) -> None:
    """A fork beside gRPC's threads ends one of ten children before they are the JVM."""
    from pyspark.errors import PySparkRuntimeError

    java_gateway: Any = import_module("pyspark.java_gateway")
    forks: list[None] = []
    os.register_at_fork(before=lambda: forks.append(None))
    submit = tmp_path / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text(f"#!/bin/sh\nkill -INT $$\necho \"$@\" > '{tmp_path}/said'\n{end}\n")
    submit.chmod(0o755)
    monkeypatch.setattr(java_gateway, "_find_spark_home", lambda: str(tmp_path))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "'a b' pyspark-shell")
    with launch() as ended:
        assert ended() == ""
        with pytest.raises(PySparkRuntimeError):
            java_gateway.launch_gateway()
        assert ended() == told
    assert java_gateway.Popen is subprocess.Popen
    assert (tmp_path / "said").read_text() == "a b pyspark-shell\n", "Ctrl-C does not reach it"
    assert not forks


@settings(deadline=None)
@given(st.lists(st.none() | st.binary(max_size=40), max_size=50), st.integers(1, 1000), st.integers(0, 5))
def test_partitions_are_those_of_kafka(keys: list[bytes | None], partitions: int, skip: int) -> None:
    found = kafka_partitions(pa.array(keys, pa.binary()).slice(skip), partitions)
    assert found.to_pylist() == [None if key is None else partition_for_key(key, partitions) for key in keys[skip:]]


@pytest.mark.parametrize(
    ("master", "used"),
    [
        ("local", "local[1, 3]"),
        ("local[*]", "local[*, 3]"),
        ("local[4]", "local[4, 3]"),
        ("local[*, 1]", "local[*, 1]"),
        ("yarn", "yarn"),
    ],
)
def test_tasks_are_tried_again(master: str, used: str) -> None:
    assert patient(master) == used


def test_rows_are_parted_in_their_order() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"partition": pa.array([2, 0, 2, 0, 1], pa.int32()), "value": [b"a", b"b", b"c", b"d", b"e"]}
    )
    parted = [
        (number, rows.column("value").to_pylist()) for number, rows in by_partition([batch, batch.slice(0, 1), batch.slice(0, 0)])
    ]
    assert parted == [(0, [b"b", b"d"]), (1, [b"e"]), (2, [b"a", b"c"]), (2, [b"a"])]
