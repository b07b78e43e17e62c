"""Spark: backfills that commit history to a topic by reference, and the data source. README.md has usage and decisions."""
