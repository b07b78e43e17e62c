"""Fleets: what starts and stops brokers. `interface` is the contract; imports of cloud libraries are lazy."""
