"""Kafka's partitioner as a Spark expression: `partition_column`.

Every partitioning must agree with the Java client's, `(murmur2(key) & 0x7fffffff) % partitions`, or the order of a key is lost.
Spark's own functions hash half a million keys a second. A Java class, which the Janino compiler inside Spark compiles when the
session first needs it, hashes eight to ten million. Without a JVM at hand (Spark Connect) numpy hashes two million.
"""

from __future__ import annotations

import tempfile
import threading
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from headgate.pipelines.session import has_jvm

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

FUNCTION = "headgate_partition"

_JAVA = """
package headgate;
public class KafkaPartition implements org.apache.spark.sql.api.java.UDF2 {
  public Object call(Object keyObject, Object countObject) {
    if (keyObject == null) return null;
    byte[] data = (byte[]) keyObject;
    int count = ((Integer) countObject).intValue();
    int length = data.length;
    int h = 0x9747b28c ^ length;
    int words = length / 4;
    for (int i = 0; i < words; i++) {
      int at = i * 4;
      int k = (data[at] & 0xff) | ((data[at + 1] & 0xff) << 8) | ((data[at + 2] & 0xff) << 16) | ((data[at + 3] & 0xff) << 24);
      k *= 0x5bd1e995;
      k ^= k >>> 24;
      k *= 0x5bd1e995;
      h *= 0x5bd1e995;
      h ^= k;
    }
    int rest = length & 3;
    int at = length & ~3;
    if (rest == 3) h ^= (data[at + 2] & 0xff) << 16;
    if (rest >= 2) h ^= (data[at + 1] & 0xff) << 8;
    if (rest >= 1) { h ^= data[at] & 0xff; h *= 0x5bd1e995; }
    h ^= h >>> 13;
    h *= 0x5bd1e995;
    h ^= h >>> 15;
    return Integer.valueOf((h & 0x7fffffff) % count);
  }
}
"""

_lock = threading.Lock()
_directory: tempfile.TemporaryDirectory[str] | None = None
"""Holds the jar until this process ends: later executors fetch it from the driver."""


def partition_column(spark: SparkSession, key: Column, partitions: int) -> Column:
    """The partition of every row, an int; null where the key, which is binary, is null."""
    return java_partition(spark, key, partitions) if has_jvm(spark) else numpy_partition(key, partitions)


def java_partition(spark: SparkSession, key: Column, partitions: int) -> Column:
    """The partition by the compiled class; null for a null key."""
    _register(spark)
    return F.call_function(FUNCTION, key, F.lit(partitions))


def numpy_partition(key: Column, partitions: int) -> Column:
    """The partition by numpy in Python workers; null for a null key."""

    def of(keys: Any) -> Any:
        return kafka_partitions(keys, partitions)

    # Spark reads the kind of function from its annotations, and cannot do so from strings.
    of.__annotations__ = {"keys": pa.Array, "return": pa.Array}
    functions: Any = F  # its stubs do not know arrow_udf
    found: Column = functions.arrow_udf(of, "int")(key)
    return found


def kafka_partitions(keys: Any, partitions: int) -> pa.Int32Array:
    """The partitions of a column of keys, vectorised; null for a null key.

    Args:
        keys: binary or large_binary.
    """
    large: Any = keys.cast(pa.large_binary())
    if isinstance(large, pa.ChunkedArray):
        large = large.combine_chunks()
    count = len(large)
    _, offsets_buffer, data_buffer = large.buffers()
    offsets = (
        np.frombuffer(offsets_buffer, dtype=np.int64)[large.offset : large.offset + count + 1] if count else np.zeros(1, np.int64)
    )
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    # Eight bytes of padding, so that the last word can be read whole.
    data = np.concatenate([data, np.zeros(8, np.uint8)])
    starts = offsets[:-1].copy()
    lengths = np.diff(offsets)
    m = np.uint32(0x5BD1E995)
    hashed = np.uint32(0x9747B28C) ^ lengths.astype(np.uint32)
    words = lengths >> 2
    for word in range(int(words.max()) if count else 0):
        rows = np.flatnonzero(words > word)
        at = starts[rows] + 4 * word
        k = _word(data, at, 4)
        k *= m
        k ^= k >> np.uint32(24)
        k *= m
        hashed[rows] = (hashed[rows] * m) ^ k
    rest = lengths & 3
    for size in (1, 2, 3):
        rows = np.flatnonzero(rest == size)
        if len(rows):
            hashed[rows] = (hashed[rows] ^ _word(data, starts[rows] + 4 * words[rows], size)) * m
    hashed ^= hashed >> np.uint32(13)
    hashed *= m
    hashed ^= hashed >> np.uint32(15)
    found: Any = ((hashed & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)).astype(np.int32)
    return pa.array(found, pa.int32(), mask=np.asarray(large.is_null()) if large.null_count else None)


def _word(data: Any, at: Any, size: int) -> Any:
    word = data[at].astype(np.uint32)
    for byte in range(1, size):
        word |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
    return word


def _register(spark: SparkSession) -> None:
    """Compile the class and register it with the session, once."""
    global _directory
    with _lock:
        if spark.catalog.functionExists(FUNCTION):
            return
        jvm: Any = spark._jvm
        if _directory is None:
            _directory = tempfile.TemporaryDirectory(prefix="headgate-spark-")
        jar = Path(_directory.name, "headgate-kafka-partition.jar")
        if not jar.exists():
            compiler = jvm.org.codehaus.janino.SimpleCompiler()
            compiler.cook(_JAVA)
            classes: Any = compiler.getBytecodes()
            with zipfile.ZipFile(jar, "w") as archive:
                for name in classes:
                    archive.writestr(name.replace(".", "/") + ".class", bytes(classes[name]))
        spark.sql(f"ADD JAR '{jar}'")
        java_session: Any = spark._jsparkSession
        context: Any = spark.sparkContext
        gateway: Any = context._gateway
        nothing, no_classes = gateway.new_array(jvm.Object, 0), gateway.new_array(jvm.Class, 0)
        # This loader knows the session's jars; executors find the class by its name in the same jar.
        known = java_session.sharedState().jarClassLoader().loadClass("headgate.KafkaPartition")
        instance = known.getDeclaredConstructor(no_classes).newInstance(nothing)
        java_session.udf().register(FUNCTION, instance, jvm.org.apache.spark.sql.types.DataTypes.IntegerType)
