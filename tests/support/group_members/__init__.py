"""Members of consumer groups as separate processes, one script per foreign client library; `process.py` is the test's side.

A script reads its settings as JSON from its first argument and writes events as JSON lines on stdout, each with the machine's
monotonic clock (`at`, seconds)::

    {"event": "assigned", "partitions": [...]}      it owns these from now on (after a cooperative rebalance: the added ones)
    {"event": "revoked", "partitions": [...]}
    {"event": "record", "partition": p, "offset": o}
    {"event": "committed", "offsets": {p: next offset}}    the broker has confirmed the commit
    {"event": "stopped"}                            it left the group cleanly

It commits its processed records after every batch, ends when its stdin is closed, and never swallows an error from which its
library would not recover by itself.
"""
