"""`headgate store`: its commands and their options."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

import typer

from headgate.broker.cli import output
from headgate.broker.cli.options import Json
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import InvalidError, Reason

app = typer.Typer(
    help="Look into a store: is it whole, who uses it, and what goes next. Changes nothing; brokers may run.", rich_markup_mode=None
)

StoreUrl = Annotated[
    str | None, typer.Option("--store", metavar="DIR|s3://BUCKET/PREFIX", help="Default: HEADGATE_STORE, or ./headgate-data.")
]


@app.command("check")
def store_check(
    store: StoreUrl = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read every record and compare it with its checksum.")] = False,
    json: Json = False,
) -> None:
    """Check that the store has everything that the cluster refers to. Exit code 1: it has not, or something is damaged."""
    from headgate.broker.cli import store as commands

    if not asyncio.run(commands.check(_settings(store), deep=deep, json=json)):
        raise typer.Exit(output.EXIT_FAILED)


@app.command("usage")
def store_usage(store: StoreUrl = None, json: Json = False) -> None:
    """Show bytes and objects, by topic and by kind."""
    from headgate.broker.cli import store as commands

    asyncio.run(commands.usage(_settings(store), json=json))


@app.command("preview")
def store_preview(store: StoreUrl = None, json: Json = False) -> None:
    """Show what retention and the sweeps would delete now, and why."""
    from headgate.broker.cli import store as commands

    asyncio.run(commands.preview(_settings(store), json=json))


def _settings(store: str | None) -> Settings:
    try:
        return Settings.load([] if store is None else ["--store", store], os.environ)
    except InvalidError as error:
        raise InvalidError(Reason.INVALID_REQUEST, error.message) from error
