"""A whole cluster in one thread and in virtual time, from one seed: see `headgate.broker.testing.simulate`."""
