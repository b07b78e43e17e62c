"""``headgate store``: what a store contains, whether it is intact, and what retention and the sweeps would delete.

These commands read the store itself, beside running brokers or without any, and change nothing.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated

import typer

from headgate.broker.cli import output
from headgate.broker.cli.command import command
from headgate.broker.cli.options import Json, given_settings
from headgate.broker.cluster.downtime import cutoff_ms
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.engine.base import keys
from headgate.broker.engine.identity import identify
from headgate.broker.engine.read.references import References
from headgate.broker.engine.upkeep.inspection import Damage, Inspection, check_store, take_stock
from headgate.broker.engine.upkeep.inventory import Expiring, Judged, Kind, Records, Standing, TopicUse, Use, expiring, topic_use
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.runtime.turns import Turns
from headgate.broker.store.interface import Store
from headgate.broker.store.open import PRIVATE_URLS, open_store

LINES_MAX = 1000
"""Damages, and ranges of unreadable records, that are printed one by one. `--json` has all of them."""
NAMES_MAX = 20
"""Ranges of records that the line of one damaged object names."""

StoreUrl = Annotated[
    str | None, typer.Option("--store", metavar="DIR|s3://BUCKET/PREFIX", help="Default: HEADGATE_STORE, or ./headgate-data.")
]
app = typer.Typer(rich_markup_mode=None)


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[Store]:
    """The store of these settings, which must have a cluster. Raises InvalidError, FatalError, RetryError."""
    if settings.store in PRIVATE_URLS:
        raise InvalidError(Reason.INVALID_REQUEST, f"a store in memory belongs to its broker's process. store=`{settings.store}`")
    store = open_store(settings.store, required_key=keys.CLUSTER_ID)
    try:
        await identify(
            store, name=settings.cluster_name, expected_id=settings.cluster_id, create=False, fresh_id="", now_ms=Clock().now_ms()
        )
        yield store
    finally:
        await store.close()


@command(app, "check")
async def check(
    store: StoreUrl = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read every record and compare it with its checksum.")] = False,
    json: Json = False,
) -> int:
    """Check that the store has everything that the cluster refers to. Exit code 1: it has not, or something is damaged."""
    settings = given_settings({"--store": store})
    async with _opened(settings) as opened:
        references = References(opened, settings.gate_allowed_prefixes, Turns(Clock().monotonic))
        try:
            found = await check_store(opened, references, _oldest_ms(settings), deep=deep, progress=_progress())
        finally:
            await references.close()
    left_over = [judged for judged in found.judged if judged.standing is Standing.LEFT_OVER]
    old = [judged for judged in left_over if judged.found.modified_ms <= _oldest_ms(settings)]
    if json:
        output.print_json(
            {
                "objects": len(found.judged),
                "damages": [_damage_json(damage) for damage in found.damages],
                "unreadable": [batch._asdict() for batch in found.unreadable],
                "left_over": [_judged_json(judged) for judged in left_over],
            }
        )
        return 0 if found.is_whole else output.EXIT_FAILED
    for damage in found.damages[:LINES_MAX]:
        output.print_line(f"damaged: {damage.key}: {damage.what}")
        output.print_line(f"  {cost(damage)}")
    for records in found.unreadable[:LINES_MAX]:
        output.print_line(f"no consumer can read {_range(records)} (see `headgate topic check {records.topic}`)")
    _tell_rest(len(found.damages) - LINES_MAX, "more damaged object")
    _tell_rest(len(found.unreadable) - LINES_MAX, "more range", "that no consumer can read")
    output.print_line(_summary(found, deep))
    if left_over:
        size = output.size(sum(judged.found.size_bytes for judged in left_over))
        output.print_line(f"{output.plural(len(left_over), 'object')} ({size}) left over: `headgate store preview` names them")
    if old:
        period = output.duration(settings.gate_file_grace_ms)
        output.print_line(f"{output.plural(len(old), 'of them')} older than {period}: does a broker run on this store?")
    return 0 if found.is_whole else output.EXIT_FAILED


def _summary(found: Inspection, deep: bool) -> str:
    size = output.size(sum(judged.found.size_bytes for judged in found.judged))
    what = "every record read" if deep else "sizes and footers compared; --deep reads every record"
    verdict = "whole" if found.is_whole else f"DAMAGED: {output.plural(len(found.damages), 'object')}"
    return f"{verdict}: {output.plural(len(found.judged), 'object')}, {size}, {what}"


@command(app, "usage")
async def usage(store: StoreUrl = None, json: Json = False) -> None:
    """Show bytes and objects, by topic and by kind."""
    stock = await _stock(store)
    topics = topic_use(stock.manifest)
    kinds: dict[tuple[Kind, Standing], Use] = {}
    for judged in stock.judged:
        kinds.setdefault((judged.kind, judged.standing), Use()).add(judged.found.size_bytes)
    if json:
        output.print_json(
            {
                "topics": {name: asdict(use) for name, use in topics.items()},
                "kinds": [{"kind": kind, "standing": standing, **asdict(use)} for (kind, standing), use in sorted(kinds.items())],
            }
        )
        return
    output.print_table(
        ("topic", "in the log", "folded", "folded files", "history", "files of history"),
        [_topic_row(name, use) for name, use in sorted(topics.items(), key=lambda item: -_bytes(item[1]))],
        title="Topics: bytes of readable records",
        numeric=("in the log", "folded", "folded files", "history", "files of history"),
    )
    output.print_table(
        ("kind", "standing", "objects", "size"),
        [(kind, standing, f"{use.objects:,}", output.size(use.size_bytes)) for (kind, standing), use in sorted(kinds.items())],
        title="Objects",
        numeric=("objects", "size"),
    )


@command(app, "preview")
async def preview(store: StoreUrl = None, json: Json = False) -> None:
    """Show what retention and the sweeps would delete now, and why."""
    stock = await _stock(store)
    gone = list(expiring(stock.manifest, _cutoff(stock.manifest)))
    left_over = [judged for judged in stock.judged if judged.standing is Standing.LEFT_OVER]
    if json:
        output.print_json(
            {"records": [_expiring_json(old) for old in gone], "objects": [_judged_json(judged) for judged in left_over]}
        )
        return
    output.print_table(
        ("topic", "partition", "offsets", "size", "reason"),
        [
            (
                *old.records[:2],
                f"{old.records.first_offset} to {old.records.end_offset - 1}",
                output.size(old.size_bytes),
                old.why,
            )
            for old in gone
        ],
        title="Records that retention would delete now",
        numeric=("partition", "size"),
    )
    output.print_table(
        ("object", "kind", "size", "reason"),
        [(judged.found.key, judged.kind, output.size(judged.found.size_bytes), judged.why) for judged in left_over],
        title="Objects that the sweeps would delete",
        numeric=("size",),
    )
    output.print_line("Newest records of running brokers, which the manifest does not list yet, are not judged.")


async def _stock(store: str | None) -> Inspection:
    settings = given_settings({"--store": store})
    async with _opened(settings) as opened:
        return await take_stock(opened, _oldest_ms(settings))


def _oldest_ms(settings: Settings) -> int:
    return Clock().now_ms() - settings.gate_file_grace_ms


def _cutoff(manifest: Manifest) -> Callable[[int], int]:
    now_ms = Clock().now_ms()
    return lambda age_ms: cutoff_ms(now_ms, age_ms, manifest.downtimes)


def _progress() -> Callable[[int, int], None]:
    """Show the number of checked objects on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        return lambda done, total: None

    def show(done: int, total: int) -> None:
        if done % 10 == 0 or done == total:
            sys.stderr.write(f"\rchecked {done:,} of {total:,} objects" + ("\n" if done == total else ""))
            sys.stderr.flush()

    return show


def cost(damage: Damage) -> str:
    """What a damage costs, for a person."""
    if damage.kind is Kind.PRODUCERS:
        return (
            "no record is lost, but partitions that need it do not open until it is restored: do not start brokers on such a copy"
        )
    if not damage.records:
        return "no record is lost: brokers make it again, or it names none that can be read"
    ranges = "; ".join(_range(records) for records in damage.records[:NAMES_MAX])
    more = len(damage.records) - NAMES_MAX
    return f"lost: {ranges}" + (f"; and {more:,} more ranges" if more > 0 else "")


def _range(records: Records) -> str:
    return f"{records.topic} partition {records.partition} offsets {records.first_offset} to {records.end_offset - 1}"


def _tell_rest(count: int, noun: str, ending: str = "") -> None:
    if count > 0:
        output.print_line(f"{output.plural(count, noun)} {ending}".rstrip() + ": --json names all")


def _bytes(use: TopicUse) -> int:
    return use.live_bytes + use.folded.size_bytes + use.history.size_bytes


def _topic_row(name: str, use: TopicUse) -> tuple[str, ...]:
    files = [text for part in (use.folded, use.history) for text in (output.size(part.size_bytes), f"{part.objects:,}")]
    return name, output.size(use.live_bytes), *files


def _damage_json(damage: Damage) -> dict[str, object]:
    return {"object": damage.key, "what": damage.what, "records": [records._asdict() for records in damage.records]}


def _judged_json(judged: Judged) -> dict[str, object]:
    return {"object": judged.found.key, "kind": judged.kind, "size_bytes": judged.found.size_bytes, "why": judged.why}


def _expiring_json(expiring: Expiring) -> dict[str, object]:
    return {**expiring.records._asdict(), "size_bytes": expiring.size_bytes, "why": expiring.why}
