"""Consumer groups: decisions without I/O. `group` has the rules of one group, `shard` those of all groups of one partition."""
