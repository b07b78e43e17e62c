"""Rounds of faults under `headgate verify`: `python -m tests.chaos --rounds N --seed S`, or `make chaos`.

Runs: lives of a cluster of three real brokers over one directory, on a loop device where root allows it. `headgate verify`, which shares
no code with the brokers, writes and reads throughout. Each round is one fault for one broker, or for all: killed, paused, cut off, starved
by busy loops, out of memory, with a clock that jumps, or on a device that loses its power, freezes or is full. A round ends when all
brokers are members and every partition acknowledges. At the end of a life, after some rounds, the verifier judges.
"""
