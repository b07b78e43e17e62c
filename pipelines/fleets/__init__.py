"""Fleets start and stop brokers. `interface` is the contract; cloud libraries are imported at their first use."""
