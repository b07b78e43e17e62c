"""A whole cluster in one thread and in virtual time, from one seed: see `broker.testing.simulate`."""
