"""The log as bytes and numbers: batches, producer state, indexes, chunks. No I/O, no clock."""
