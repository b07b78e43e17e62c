"""The options of the data source: reading one by its name, in any case, with a clear error. Nothing here calls a broker."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headgate.broker.client.types import DEFAULT_CLUSTER
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.schemas.registry import Registry

_SPARK_OPTIONS = ("path", "queryName", "checkpointLocation")
"""Options that Spark's own calls add to those of a source or sink."""


def check_options(options: Iterable[str], known: Sequence[str], what: str) -> None:
    """Raise InvalidError for an unknown option: its author expects an effect."""
    names = {name.lower() for name in (*known, *_SPARK_OPTIONS)}
    for name in options:
        if name.lower() not in names:
            raise InvalidError(Reason.INVALID_REQUEST, f"{what} has no such option. option=`{name}` options=`{', '.join(known)}`")


def option(options: Mapping[str, str], name: str) -> str | None:
    """The value of an option, independent of the case of its name."""
    found = options.get(name)
    return found if found is not None else options.get(name.lower())


def number_option(options: Mapping[str, str], name: str, default: int | None = None) -> int | None:
    """The value of an option that is a positive number. Raises InvalidError."""
    text = option(options, name)
    if text is None:
        return default
    value = whole(name, text)
    if value < 1:
        raise invalid(f"{name} is a positive number", text)
    return value


def flag_option(options: Mapping[str, str], name: str, default: bool) -> bool:
    """The value of an option that is true or false. Raises InvalidError."""
    text = option(options, name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise invalid(f"{name} is true or false", text)
    return text.lower() == "true"


def words_option(options: Mapping[str, str], name: str) -> Sequence[str]:
    """The words of an option, separated by commas."""
    return [word.strip() for word in (option(options, name) or "").split(",") if word.strip()]


def cluster_of(options: Mapping[str, str]) -> str:
    """The address of the cluster. Raises InvalidError when only Kafka's address is given."""
    cluster = option(options, "cluster")
    if cluster is None and option(options, "kafka.bootstrap.servers") is not None:
        raise InvalidError(
            Reason.INVALID_REQUEST, "kafka.bootstrap.servers is a Kafka port: give the option cluster, HOST:GRPC_PORT of any broker"
        )
    return cluster or DEFAULT_CLUSTER


def registry_of(options: Mapping[str, str]) -> str | None:
    """The URL of the schema registry, if one is given. Raises InvalidError for another text."""
    url = option(options, "registry")
    if url is not None:
        Registry(url)
    return url


def json_value(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise invalid(f"{name} is not JSON: {error}", text) from error


def whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise invalid(f"{name} is a number", text) from error


def invalid(what: str, value: str) -> InvalidError:
    return InvalidError(Reason.INVALID_REQUEST, f"{what}. value=`{value[:200]}`")
