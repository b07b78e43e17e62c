"""Headgate's brokers: a message queue for floods, over a store. ARCHITECTURE.md says how the parts fit."""

__version__ = "0.1.0"
