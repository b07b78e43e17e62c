"""Spark: backfills that commit history to a topic by reference, and a data source. Nothing is here yet."""
