"""What `headgate flood run` prints of Spark's output: nothing, also when the JVM ends before it."""

from __future__ import annotations

import subprocess
import sys

CALL_OF_AN_ENDING_JVM = """
import socket, struct, threading

from py4j.java_gateway import GatewayClient, GatewayParameters

from headgate.broker.cli.flood import quiet

listener = socket.create_server(("127.0.0.1", 0))

def reset() -> None:
    connection, _ = listener.accept()
    connection.recv(1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() resets the connection
    connection.close()

thread = threading.Thread(target=reset)
thread.start()
with quiet():
    pass
port = listener.getsockname()[1]
client = GatewayClient(gateway_parameters=GatewayParameters(port=port))
print(client.send_command("m\\nd\\no1\\ne\\n"))
thread.join()
"""


def test_a_call_that_an_ending_jvm_breaks_off_is_not_printed() -> None:
    """py4j logs such a call with a traceback, by the root logger. The flood is over by then."""
    done = subprocess.run([sys.executable, "-c", CALL_OF_AN_ENDING_JVM], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "x\n", "py4j's answer for an error"
    assert done.stderr == ""


FAILED_QUERY = """
from pyspark.logger import PySparkLogger

from headgate.broker.cli.flood import open_loggers, quiet

with quiet() as log:
    open_loggers()
    try:
        raise ValueError("no such column")
    except ValueError:
        # As PySpark does when the analysis of a query fails.
        PySparkLogger.getLogger("SQLQueryContextLogger").exception("no such column", file="a.py", line="1")
    assert "no such column" in log.read_text()
"""


def test_the_log_of_a_failed_query_is_not_printed() -> None:
    """PySpark prints it as JSON with a stack trace; the command reports the error in one line."""
    done = subprocess.run([sys.executable, "-c", FAILED_QUERY], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
