"""Pure decisions about the cluster: which topics exist, which broker leads, when to split. No I/O, no clock."""
