"""Commands that start, watch and drain brokers."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

import typer

from headgate.broker.cli import output
from headgate.broker.cli.options import DEFAULT_CLUSTER, INT32_MAX, Cluster, Json, duration_ms
from headgate.broker.runtime.errors import InvalidError, Reason

app = typer.Typer(rich_markup_mode=None)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def up(
    context: typer.Context,
    brokers: Annotated[int, typer.Option("--brokers", min=1, help="Fewest brokers.")] = 1,
    max_brokers: Annotated[
        int | None, typer.Option("--max-brokers", min=1, help="Most brokers, even if more are reserved. Default: 8, or --brokers.")
    ] = None,
    store: Annotated[str | None, typer.Option(metavar="DIR|s3://BUCKET/PREFIX", help="Default: ./headgate-data")] = None,
    kafka_port: Annotated[str | None, typer.Option(metavar="PORT", help="Default: 9092")] = None,
    grpc_port: Annotated[str | None, typer.Option(metavar="PORT", help="Default: 9095")] = None,
    http_port: Annotated[str | None, typer.Option(metavar="PORT", help="Default: 9090")] = None,
) -> None:
    """Run a local cluster until Ctrl-C.

    Takes every setting of `headgate broker --help` too. Prints one line when the cluster serves, and restarts a broker that
    dies. Starts and ends brokers to match the load and the reservations of `headgate capacity open`.
    """
    from headgate.broker.cli.up import DEFAULTS
    from headgate.broker.cli.up import up as run_up
    from headgate.broker.runtime.config import Settings

    named = {"--store": store, "--kafka-port": kafka_port, "--grpc-port": grpc_port, "--http-port": http_port}
    arguments = [part for name, value in named.items() if value is not None for part in (name, value)]
    try:
        settings = Settings.load([*arguments, *context.args], os.environ, DEFAULTS)
    except InvalidError as error:
        # Here a wrong setting is a usage error. A cluster may refuse a topic's setting although the command was right.
        raise InvalidError(Reason.INVALID_REQUEST, error.message) from error
    from headgate.broker.cli.in_use import check_unused

    asyncio.run(check_unused(settings))
    raise typer.Exit(run_up(settings, brokers, max_brokers))


@app.command("init", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def init_command(
    context: typer.Context,
    store: Annotated[str | None, typer.Option(metavar="DIR|s3://BUCKET/PREFIX", help="Default: ./headgate-data")] = None,
) -> None:
    """Make a new cluster in an empty store, and print its id. If the store has a cluster already, only print its id.

    Takes every setting of `headgate broker --help` too, such as --cluster-name.
    """
    from headgate.broker.cli.init import init
    from headgate.broker.runtime.config import Settings

    named = [] if store is None else ["--store", store]
    try:
        settings = Settings.load([*named, *context.args], os.environ)
    except InvalidError as error:
        raise InvalidError(Reason.INVALID_REQUEST, error.message) from error
    typer.echo(asyncio.run(init(settings)))


@app.command("broker", context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def broker_command(context: typer.Context) -> None:
    """Run one broker process: fleets start this command. `headgate broker --help` lists its settings."""
    from headgate.broker.cli.broker import run_broker

    raise typer.Exit(run_broker(context.args))


@app.command("health", context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def health_command(context: typer.Context) -> None:
    """Ask the broker of this machine whether it serves clients, for health checks. `headgate health --help` says more."""
    from headgate.broker.cli.health import run_health

    raise typer.Exit(run_health(context.args))


@app.command()
def status(
    cluster: Cluster = DEFAULT_CLUSTER,
    window: Annotated[str, typer.Option(metavar="DURATION", help="Time to measure traffic; 0: do not measure.")] = "1s",
    json: Json = False,
) -> None:
    """Show the cluster: its brokers, segments and topics, their traffic, and the leader's latest decisions."""
    from headgate.broker.cli.status import show_status

    window_ms = duration_ms("--window", window, high_ms=10_000)
    output.check_reachable(cluster)
    output.run(show_status(cluster, window_ms, json))


@app.command()
def drain(
    broker: Annotated[int, typer.Argument(metavar="BROKER", min=0, max=INT32_MAX, help="The number that `headgate status` shows.")],
    cluster: Cluster = DEFAULT_CLUSTER,
    json: Json = False,
) -> None:
    """Move all segments of a broker to the others, and give it none until it is started again.

    A broker that gets SIGTERM does this by itself.
    """
    from headgate.broker.cli.drain import drain as drain_broker

    output.check_reachable(cluster)
    output.run(drain_broker(cluster, broker, json))
