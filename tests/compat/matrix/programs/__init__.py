"""The programs of the table, one for each client. Each prints a line of JSON for each step; see `steps.py`."""
