"""Rounds of faults under `headgate verify`: `python -m tests.chaos --rounds N --seed S`, or `make chaos`.

Runs: lives of a cluster of three real brokers over one directory, on a loop device if root allows it. `headgate verify`, which
shares no code with the brokers, writes and reads throughout. Each round is one fault for one broker, or for all: killed,
drained, paused, cut off, starved by busy loops, out of memory, with a clock that jumps, or on a device that loses its power,
freezes or is full. With `--floods` each fault occurs in the middle of a flood by Spark, and Spark is killed, too; a foreign client
then reads the flood. A round ends when all brokers are members and every partition acknowledges. After some rounds a life ends,
and the verifier compares the acknowledgements and reads with the final log. A mismatch means that an acknowledged record was
lost, repeated or reordered, that a record vanished, or that a position went back. A life also fails if brokers did not come
back, ended without a valid reason, or printed a traceback.
"""
