"""The Kafka APIs, one file each: `API` at its end says what the broker has to know (`declared.py`)."""
