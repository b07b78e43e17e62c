"""The state of the partitions that this broker leads."""
