"""Consumer groups. `group` has the rules of one group, `shard` those of all groups of one partition; `coordinator` drives both."""
