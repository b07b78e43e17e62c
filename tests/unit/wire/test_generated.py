"""The checked-in Kafka messages against the generator.

Runs the generator in memory and compares its text with `broker/wire/kafka/messages/`, and the schemas with kio. A mismatch means
that generated code was edited by hand. Or the generator (or the version of kafka-python, which carries the schemas) changed and was
not run again: ``python -m headgate.broker.wire.kafka.generate``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from kio.schema.index import api_key_map, schema_name_map

import headgate.broker.wire.kafka
from headgate.broker.wire.kafka import generate
from headgate.broker.wire.kafka.schema import load, snake

MESSAGES = Path(headgate.broker.wire.kafka.__file__).parent / "messages"

REQUESTS = sorted(name for names in generate.MESSAGES.values() for name in names if len(names) == 2 and name.endswith("Request"))
ENDS_EARLIER = {"DescribeLogDirsRequest": 4}
"""The last version of schemas that end before kio's."""


def test_checked_in_messages_are_what_the_generator_writes() -> None:
    generated = generate.generate_all()
    assert {path.name for path in MESSAGES.glob("*.py")} == set(generated)
    for name, text in generated.items():
        assert (MESSAGES / name).read_text() == text, f"{name} differs: run python -m headgate.broker.wire.kafka.generate"


@pytest.mark.parametrize("name", REQUESTS)
def test_schemas_cover_kafka(name: str) -> None:
    """Key and versions are those that kio, which is made from Kafka's own schemas, has."""
    module = snake(name.removesuffix("Request"))
    versions = schema_name_map[module]
    for message in (load(name), load(name.replace("Request", "Response"))):
        assert message.api_key is not None and api_key_map[message.api_key] == module
        assert message.versions.lowest == min(versions)
        assert message.versions.highest >= ENDS_EARLIER.get(name, max(versions))
