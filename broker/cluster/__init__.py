"""Pure decisions about the cluster: what topics there are, who leads, when to split. No I/O, no clock."""
