"""Rounds of faults under the verifier (`broker/verify/`): `python -m tests.chaos --rounds N --seed S`, or `make chaos`.

Runs: lives of a cluster of three real brokers, in turn over one directory, on a loop device if root allows it, and over S3 (moto).
The verifier, which shares no code with the brokers, writes and reads throughout, with a classic group and one of KIP-848;
records become Parquet files after seconds, and clients of two libraries work in transactions. Each round is one fault for one
broker, or for all: killed, drained, paused, cut off, far from each other or from S3 (up to 5 s each way), starved by busy loops,
out of memory, with a clock that jumps, without S3 for minutes, or on a device that loses its power, freezes or is full. With
`--floods` each fault occurs in the middle of a flood by Spark, and Spark is killed, too; a foreign client then reads the flood.
A round ends when all brokers are members and every partition acknowledges. After some rounds a life ends, and the verifier
compares the acknowledgements and reads with the final log, and the results of transactions with their source. A mismatch means
that an acknowledged record was lost, repeated or reordered, that a record vanished, or that a position went back. A life also
fails if brokers did not come back, ended without a valid reason, or printed a traceback.
"""
