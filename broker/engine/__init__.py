"""The data plane of one broker: write path, read path, recovery, checkpoints, retention. `engine.py` is its interface."""
