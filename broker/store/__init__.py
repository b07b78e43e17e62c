"""The store: the one seam for durable I/O. `interface.py` is its contract."""
