"""A long run that must not grow: `python -m tests.soak --hours 4`, or the short form in `make soak`.

Runs: two real brokers over one store, with small chunks and short retention, so that folding, retention and sweeping work all
the time. The verifier writes, and reads in groups. Each round brings a flood by reference, whose rows a foreign client
reads back, a group that comes and goes, and sometimes a topic that is deleted; every second round kills one broker and measures
its recovery. Spark runs a whole `headgate flood run` once an hour. Meanwhile a thread samples memory, objects and bytes in the
store, and the size of the manifest.
Compared: each curve's last third with its middle third (`judge.py`); the verifier's acks and reads; each flood's rows with its
files. A mismatch means that something grows with time instead of with the kept records, or that a record is lost or doubled.
"""
