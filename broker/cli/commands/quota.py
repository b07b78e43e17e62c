"""``headgate quota``: limits of clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from headgate.broker.cli import output
from headgate.broker.cli.command import command
from headgate.broker.cli.options import DEFAULT_CLUSTER, Cluster, Json
from headgate.broker.client.access_admin import AccessAdmin, Quota
from headgate.broker.client.control import QuotaUse
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.runtime.setting_kinds import parse_size

COLUMNS = ("user", "client id", "quota", "limit")
DEFAULT_SHOWN = "(default)"
NAMES = "producer_byte_rate, consumer_byte_rate (bytes per second)"

User = Annotated[str | None, typer.Option("--user", metavar="USER", help="Clients of this user; `default`: all others.")]
ClientId = Annotated[str | None, typer.Option("--client-id", metavar="ID", help="Clients with this id; `default`: all others.")]

app = typer.Typer(rich_markup_mode=None)


@command(app, "set")
async def set_quotas(
    values: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help=f"{NAMES}.")],
    cluster: Cluster = DEFAULT_CLUSTER,
    user: User = None,
    client_id: ClientId = None,
) -> None:
    """Set quotas: `headgate quota set producer_byte_rate=10MiB --user alice`. They hold in the whole cluster."""
    quota = entity(user, client_id, limits(values))
    async with AccessAdmin(cluster) as admin:
        await admin.set_quotas(quota)
    _print([quota])


@command(app, "remove")
async def remove_quotas(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help=f"{NAMES}.")],
    cluster: Cluster = DEFAULT_CLUSTER,
    user: User = None,
    client_id: ClientId = None,
) -> None:
    """Remove quotas."""
    quota = entity(user, client_id, dict.fromkeys(names, 0.0))
    async with AccessAdmin(cluster) as admin:
        await admin.remove_quotas(quota)
    output.print_line(f"removed: {', '.join(quota.values)}")


@command(app, "list")
async def list_quotas(cluster: Cluster = DEFAULT_CLUSTER, json: Json = False) -> None:
    """List the quotas. `headgate status` shows whose clients wait."""
    async with AccessAdmin(cluster) as admin:
        quotas = await admin.quotas()
    if json:
        output.print_json([asdict(quota) for quota in quotas])
    else:
        _print(quotas)


def entity(user: str | None, client_id: str | None, values: dict[str, float]) -> Quota:
    """Quotas for an entity; `default` as a name is every name without a quota of its own. Raises InvalidError."""
    if user is None and client_id is None:
        raise InvalidError(Reason.INVALID_REQUEST, "say for which clients: --user, --client-id, or both")
    names = ["" if name == "default" else name for name in (user, client_id)]
    return Quota(user=names[0], client_id=names[1], values=values)


def limits(texts: Sequence[str]) -> dict[str, float]:
    """Quotas from texts like ``producer_byte_rate=1MiB``. Raises InvalidError."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        size = parse_size(value) if name.endswith("byte_rate") else None
        try:
            found[name] = float(value) if size is None else float(size)
        except ValueError as error:
            raise InvalidError(
                Reason.INVALID_REQUEST, f"a quota is written NAME=NUMBER, or NAME=1MiB for bytes. value=`{text[:100]}`"
            ) from error
        if not equals or not name:
            raise InvalidError(Reason.INVALID_REQUEST, f"a quota is written NAME=NUMBER. value=`{text[:100]}`")
    return found


def _print(quotas: Sequence[Quota]) -> None:
    rows = [
        (_name(quota.user), _name(quota.client_id), kind, _limit(value))
        for quota in quotas
        for kind, value in sorted(quota.values.items())
    ]
    output.print_table(COLUMNS, rows, numeric=("limit",))


def _name(name: str | None) -> str:
    return "" if name is None else name or DEFAULT_SHOWN


def _limit(value: float) -> str:
    return f"{output.size(value)}/s"


def throttled_lines(uses: Sequence[QuotaUse]) -> list[str]:
    """A line for each quota whose clients wait: who shares it, and how much of it they use."""
    groups: dict[tuple[str | None, str | None, str], list[QuotaUse]] = {}
    for use in uses:
        groups.setdefault((use.user, use.client_id, use.kind), []).append(use)
    lines = []
    for (user, client_id, kind), found in groups.items():
        if any(use.throttled for use in found):
            named = [("user", user), ("client id", client_id)]
            who = ", ".join(f"{word} {name or DEFAULT_SHOWN}" for word, name in named if name is not None)
            brokers = ", ".join(str(use.broker_id) for use in found if use.throttled)
            limit, rate = _limit(found[0].limit), _limit(sum(use.rate for use in found))
            lines.append(f"{who} waits: {kind} is {limit}, used {rate} (broker {brokers})")
    return lines
