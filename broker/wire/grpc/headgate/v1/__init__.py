"""Package `headgate.v1`: the .proto files, and the Python that `generate.py` makes of them."""
