"""``headgate up|init|broker|health``: brokers on this machine, and a new cluster for others."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from headgate.broker.cli.broker import run_broker
from headgate.broker.cli.health import run_health
from headgate.broker.cli.in_use import check_unused
from headgate.broker.cli.init import init
from headgate.broker.cli.options import given_settings
from headgate.broker.cli.up import DEFAULTS
from headgate.broker.cli.up import up as run_up

app = typer.Typer(rich_markup_mode=None)
_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}
_PASSED_ON = {**_SETTINGS, "help_option_names": []}

Store = Annotated[str | None, typer.Option(metavar="DIR|s3://BUCKET/PREFIX", help="Default: ./headgate-data")]


@app.command(context_settings=_SETTINGS)
def up(
    context: typer.Context,
    brokers: Annotated[int, typer.Option("--brokers", min=1, help="Fewest brokers.")] = 1,
    max_brokers: Annotated[
        int | None, typer.Option("--max-brokers", min=1, help="Most brokers, even if more are reserved. Default: 8, or --brokers.")
    ] = None,
    store: Store = None,
    kafka_port: Annotated[str | None, typer.Option(metavar="PORT", help="Default: 9092")] = None,
    grpc_port: Annotated[str | None, typer.Option(metavar="PORT", help="Default: 9095")] = None,
    http_port: Annotated[str | None, typer.Option(metavar="PORT", help="Default: 9090")] = None,
) -> int:
    """Run a local cluster until Ctrl-C.

    Takes every setting of `headgate broker --help` too. Prints one line when the cluster serves, and restarts a broker that
    dies. Starts and ends brokers to match the load and the reservations of `headgate capacity open`.
    """
    named = {"--store": store, "--kafka-port": kafka_port, "--grpc-port": grpc_port, "--http-port": http_port}
    settings = given_settings(named, context.args, DEFAULTS)
    asyncio.run(check_unused(settings))
    return run_up(settings, brokers, max_brokers)


@app.command("init", context_settings=_SETTINGS)
def init_command(context: typer.Context, store: Store = None) -> None:
    """Make a new cluster in an empty store, and print its id. If the store has a cluster already, only print its id.

    Takes every setting of `headgate broker --help` too, such as --cluster-name.
    """
    typer.echo(asyncio.run(init(given_settings({"--store": store}, context.args))))


@app.command("broker", context_settings=_PASSED_ON)
def broker_command(context: typer.Context) -> int:
    """Run one broker process: fleets start this command. `headgate broker --help` lists its settings."""
    return run_broker(context.args)


@app.command("health", context_settings=_PASSED_ON)
def health_command(context: typer.Context) -> int:
    """Ask the broker of this machine whether it serves clients, for health checks. `headgate health --help` says more."""
    return run_health(context.args)
