"""Settings of consumer groups and of client metrics, in the form in which Kafka's config APIs show and change them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headgate.broker.engine import resource_settings
from headgate.broker.engine.resource_settings import CLIENT_METRICS, GROUP, NAME_CHARS_MAX
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.server.kafka.configs import Changes, ConfigSource, Entry, Synonym, altered
from headgate.broker.server.kafka.context import Context

KINDS = {16: CLIENT_METRICS, 32: GROUP}
"""Resource types, and the prefixes of their names in the manifest."""
_SOURCES = {CLIENT_METRICS: ConfigSource.CLIENT_METRICS, GROUP: ConfigSource.GROUP}


def entries(resource_type: int, name: str, context: Context) -> list[Entry]:
    """All settings of a group or of client metrics, whether they exist or not, in the order of their names."""
    resource, kind = _resource(resource_type, name), KINDS[resource_type]
    settings = context.engine.configs.started_with
    chosen = context.engine.manifest.broker_configs.get(resource, {})
    found = []
    for key in sorted(resource_settings.keys_of(resource, settings).values(), key=lambda key: key.name):
        own: list[Synonym] = [(key.name, chosen[key.name], _SOURCES[kind])] if key.name in chosen else []
        synonyms = (*own, (key.name, key.default, ConfigSource.DEFAULT))
        found.append(Entry(name=key.name, kind=key.kind, read_only=False, documentation=key.documentation, synonyms=synonyms))
    return found


async def alter(
    resource_type: int, name: str, made: Callable[[Mapping[str, str]], Mapping[str, str]], context: Context, *, validate_only: bool
) -> None:
    """Change the settings of a group or of client metrics. Raises InvalidError."""
    await context.engine.configs.alter(_resource(resource_type, name), made, validate_only=validate_only)


def changed(resource_type: int, name: str, present: Mapping[str, str], changes: Changes, context: Context) -> dict[str, str]:
    """The settings after IncrementalAlterConfigs. Raises InvalidError."""
    resource, settings = _resource(resource_type, name), context.engine.configs.started_with
    return altered(present, changes, lambda key: resource_settings.find(resource, settings, key), lambda key: key.default)


def _resource(resource_type: int, name: str) -> str:
    what = "group" if KINDS[resource_type] == GROUP else "subscription of client metrics"
    if not name or len(name) > NAME_CHARS_MAX:
        raise InvalidError(Reason.INVALID_REQUEST, f"a {what} has a name of 1 to {NAME_CHARS_MAX} characters. name=`{name[:100]}`")
    return f"{KINDS[resource_type]}{name}"
