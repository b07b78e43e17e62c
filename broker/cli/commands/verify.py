"""`headgate verify`: its commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headgate.broker.cli.options import LONGEST_TTL_MS, Json, bad_option, duration_ms, named_pairs
from headgate.broker.runtime.errors import InvalidError, Reason

app = typer.Typer(
    help="Verify any Kafka endpoint while you inject faults: is a record lost, repeated, reordered, or gone after it was read?",
    rich_markup_mode=None,
    invoke_without_command=True,
)


Bootstrap = Annotated[
    str | None, typer.Option("--bootstrap", "-b", metavar="HOST:PORT", help="Kafka endpoint, or several separated by commas.")
]
ReplicationFactor = Annotated[
    int,
    typer.Option(
        "--replication-factor", "-r", min=-1, max=100, help="Replication factor of the topics; -1: the endpoint's default."
    ),
]
Producers = Annotated[int, typer.Option("--producers", min=1, max=100, help="Producers; every second one without idempotence.")]
Patience = Annotated[
    str,
    typer.Option("--patience", metavar="DURATION", help="Longest wait for the last acknowledgements; for the final read."),
]
Settle = Annotated[
    str, typer.Option("--settle", metavar="DURATION", help="Longest wait until all acknowledged records can be read.")
]
GroupProtocol = Annotated[
    str,
    typer.Option("--group-protocol", help="classic, consumer (KIP-848), or both: every second group with each."),
]
Interval = Annotated[str, typer.Option("--interval", "-i", metavar="DURATION", help="Pause between two lines of progress.")]
History = Annotated[
    Path | None,
    typer.Option("--history", metavar="DIR", help="New directory for the history. Default: a temporary one."),
]
ClientConfig = Annotated[
    list[str] | None, typer.Option("--client-config", "-X", metavar="NAME=VALUE", help="librdkafka property; may be repeated.")
]
TopicConfig = Annotated[
    list[str] | None, typer.Option("--topic-config", metavar="NAME=VALUE", help="Setting of the topics; may be repeated.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Gaps, repeats without idempotence and old watermarks are errors, too.")]


@app.callback()
def verify(
    context: typer.Context,
    bootstrap: Bootstrap = None,
    duration: Annotated[str, typer.Option("--duration", "-d", metavar="DURATION", help="Time that producers write.")] = "60s",
    rate: Annotated[float, typer.Option("--rate", min=0.1, max=1e6, help="Records per second of all producers together.")] = 1000,
    topics: Annotated[int, typer.Option("--topics", min=1, max=100, help="New topics to write to.")] = 1,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, max=500, help="Partitions of each topic.")] = 6,
    replication_factor: ReplicationFactor = -1,
    producers: Producers = 4,
    groups: Annotated[int, typer.Option("--groups", min=0, max=100, help="Consumer groups of two members each.")] = 1,
    group_protocol: GroupProtocol = "classic",
    acks: Annotated[str, typer.Option("--acks", help="all or 1; with 1 no producer is idempotent.")] = "all",
    value_bytes: Annotated[int, typer.Option("--value-bytes", min=64, max=1_000_000, help="Size of a value.")] = 200,
    patience: Patience = "60s",
    settle: Settle = "15s",
    interval: Interval = "2s",
    history: History = None,
    client_config: ClientConfig = None,
    topic_config: TopicConfig = None,
    keep_topic: Annotated[bool, typer.Option("--keep-topic", help="Keep the topics even if no rule was violated.")] = False,
    strict: Strict = False,
    json: Json = False,
) -> None:
    """Verify any Kafka endpoint while you inject faults; needs a source tree.

    Producers, readers and groups work until the duration is over or Ctrl-C. Then everything is read once more and judged.
    Prints one page with the rules and their violations. Exit code 0: no violation. 1: a violation. 2: it could not be
    judged.
    """
    if context.invoked_subcommand is not None:
        return
    from headgate.broker.cli.verify import verify_endpoint

    if bootstrap is None:
        raise InvalidError(Reason.INVALID_REQUEST, "an endpoint is missing. option=`--bootstrap`")
    if acks not in ("all", "1"):
        raise bad_option("--acks", acks, "all or 1")
    if group_protocol not in ("classic", "consumer", "both"):
        raise bad_option("--group-protocol", group_protocol, "classic, consumer or both")
    plan = {
        "bootstrap": bootstrap,
        "duration_s": duration_ms("--duration", duration, high_ms=LONGEST_TTL_MS) / 1000,
        "rate": rate,
        "topics": topics,
        "partitions": partitions,
        "replication_factor": replication_factor,
        "producers": producers,
        "groups": groups,
        "group_protocol": group_protocol,
        "acks": acks,
        "value_bytes": value_bytes,
        "patience_s": duration_ms("--patience", patience, high_ms=LONGEST_TTL_MS) / 1000,
        "settle_s": duration_ms("--settle", settle, high_ms=LONGEST_TTL_MS) / 1000,
        "progress_s": max(duration_ms("--interval", interval, high_ms=60_000), 100) / 1000,
        "config": named_pairs("--client-config", client_config),
        "topic_config": named_pairs("--topic-config", topic_config),
        "keep_topics": keep_topic,
        "strict": strict,
    }
    raise typer.Exit(verify_endpoint(plan, history, json))


@app.command("judge")
def verify_judge(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="History of an earlier run.")],
    strict: Annotated[
        bool, typer.Option("--strict", help="Gaps, repeats without idempotence and old watermarks are errors, too.")
    ] = False,
    json: Json = False,
) -> None:
    """Judge the history of an earlier run again. Sends nothing to the endpoint."""
    from headgate.broker.cli.verify import judge_again

    raise typer.Exit(judge_again(directory, strict, json))
