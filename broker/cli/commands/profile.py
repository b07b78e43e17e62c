"""``headgate profile``: names for clusters."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.broker.cli import output, profiles
from headgate.broker.cli.options import Json
from headgate.broker.client.address import absolute

app = typer.Typer(rich_markup_mode=None)
Name = Annotated[str, typer.Argument(metavar="PROFILE", help="The profile's name.")]


@app.command("set")
def profile_set(
    name: Name,
    cluster: Annotated[str, typer.Argument(metavar="HOST:GRPC_PORT", help="Any broker, or several separated by commas.")],
) -> None:
    """Name a cluster, or change its addresses. The first profile is used at once. Paths of files become absolute."""
    cluster = absolute(cluster)
    known = profiles.load()
    known.clusters[name] = cluster
    known.current = known.current or name
    profiles.save(known)
    output.print_line(f"profile {name} is {cluster}{', and in use' if known.current == name else ''}")


@app.command("use")
def profile_use(name: Name) -> None:
    """Use a profile: commands without --cluster, --profile and HEADGATE_CLUSTER go to its cluster."""
    known = profiles.load()
    cluster = known.cluster(name)
    known.current = name
    profiles.save(known)
    output.print_line(f"profile {name} is in use: {cluster}")


@app.command("list")
def profile_list(json: Json = False) -> None:
    """List the profiles."""
    known = profiles.load()
    if json:
        output.print_json(
            [{"name": name, "cluster": known.clusters[name], "in_use": name == known.current} for name in known.clusters]
        )
        return
    rows = [(name, known.clusters[name], "yes" if name == known.current else "") for name in sorted(known.clusters)]
    output.print_table(("profile", "cluster", "in use"), rows)


@app.command("delete")
def profile_delete(name: Name) -> None:
    """Forget a profile."""
    known = profiles.load()
    known.cluster(name)
    del known.clusters[name]
    known.current = "" if known.current == name else known.current
    profiles.save(known)
    output.print_line(f"profile {name} deleted")
