"""Values that several answers of the Kafka API share."""

from __future__ import annotations

NO_OPERATIONS = -(2**31)
"""Authorized operations if the client did not ask for them."""
TOPIC_OPERATIONS = 0b1101_1111_1000
"""Read, Write, Create, Delete, Alter, Describe, DescribeConfigs, AlterConfigs: Kafka's answer without an authorizer."""
GROUP_OPERATIONS = 0b1_0100_1000
"""Read, Delete, Describe."""
CLUSTER_OPERATIONS = 0b1_1111_1010_0000
"""Create, Alter, Describe, ClusterAction, DescribeConfigs, AlterConfigs, IdempotentWrite."""

ID_UNKNOWN = -1
"""Kafka's "none" for offsets, timestamps, epochs, producers."""
