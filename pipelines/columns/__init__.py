"""A flood's work on columns: Spark distributes and retries the tasks, and each task reads, partitions, sorts and writes with Arrow.

`expressions.py` and `layout.py` decide whether a source can take this path. A source that cannot keeps Spark's rows.
"""
