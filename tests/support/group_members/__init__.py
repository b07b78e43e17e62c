"""Members of consumer groups as processes of their own, one script per foreign client library; `process.py` is the test's side.

A script reads its settings as JSON from its first argument and tells what happens as JSON lines on stdout, each with the machine's
monotonic clock (`at`, seconds)::

    {"event": "assigned", "partitions": [...]}      what it owns from now on (of a cooperative rebalance: what was added)
    {"event": "revoked", "partitions": [...]}
    {"event": "record", "partition": p, "offset": o}
    {"event": "committed", "offsets": {p: next offset}}    the broker said so
    {"event": "stopped"}                            it left in good order

It commits what it processed after every batch, ends when its stdin is closed, and never swallows an error that its library would
not recover from by itself.
"""
