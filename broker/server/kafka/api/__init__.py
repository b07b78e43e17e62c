"""Handlers of the Kafka APIs, one file each, named in `broker/server/kafka/apis.py`."""
