"""Run rounds of faults: `python -m tests.chaos [--rounds N] [--seed S] [--faults NAME,...] [--rounds-per-life N]`."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.faults import ALL, ON_DEVICE, ON_S3, WITH_FLOODS
from tests.chaos.life import live
from tests.support.loop_device import refused


def main() -> int:
    """Returns 0 if the verifier found every life right, else 1. The directories of failed lives are kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Rounds of faults under the verifier.")
    parser.add_argument("--rounds", type=int, default=10, help="faults in all (10)")
    parser.add_argument("--rounds-per-life", type=int, default=5, help="faults between a start and its verdict (5)")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="draws the faults; default: a new one")
    parser.add_argument("--faults", help=f"those to draw from ({','.join(ALL)}; with --floods also spark)")
    parser.add_argument("--floods", action="store_true", help="each fault occurs in the middle of a flood by Spark")
    parser.add_argument("--directory", type=Path, help="where stores, logs and histories go; default: a temporary one")
    given = parser.parse_args()
    known = WITH_FLOODS if given.floods else ALL
    faults = [name for name in given.faults.split(",") if name] if given.faults else list(known)
    if unknown := set(faults) - set(known):
        parser.error(f"there is no such fault: {', '.join(sorted(unknown))}")
    reason = refused()
    if reason is not None and (dropped := [name for name in faults if name in ON_DEVICE]):
        _say(f"WITHOUT {', '.join(dropped)}: {reason}")
        faults = [name for name in faults if name not in ON_DEVICE]
    place = given.directory or Path(tempfile.mkdtemp(prefix="headgate-chaos-"))
    draw = random.Random(given.seed)
    _say(f"seed {given.seed}, {given.rounds} rounds of {', '.join(faults)}; in {place}")
    rounds = wrong = acked = 0
    lives = _lives(faults, given.rounds, given.rounds_per_life, draw)
    for number, (on_s3, of_life) in enumerate(lives):
        directory = place / f"life-{number}"

        def told(line: str) -> None:
            nonlocal rounds
            rounds += 1
            _say(f"round {rounds} of {given.rounds}, {line}")

        began = rounds
        _say(f"life {number} on {'S3' if on_s3 else 'a directory'}: {', '.join(of_life)}")
        try:
            page = live(
                directory,
                of_life,
                random.Random(f"{given.seed}-{number}"),
                told,
                on_device=reason is None and not on_s3,
                on_s3=on_s3,
                with_transactions=True,
                with_floods=given.floods,
            )
        except (AssertionError, OSError) as error:
            wrong += 1
            _say(f"life {number} FAILED in {of_life[min(rounds - began, len(of_life) - 1)]}: {error}\n  kept in {directory}")
            rounds = began + len(of_life)
            continue
        is_right = page["verdict"] == "right" and not page["deleted"]
        wrong += not is_right
        acked += page["acked"]
        deleted = f" {page['deleted']:,} acknowledged records were deleted." if page["deleted"] else ""
        allowed = ", ".join(f"{count:,} {kind}" for kind, count in page["counts"].items() if count and kind not in page["errors"])
        silence_s = page["longest_without_ack_ms"] / 1000
        _say(f"life {number} {page['summary']}{deleted} Longest time without an acknowledgement {silence_s:.1f} s")
        if page["transactions"]:
            _say(f"  {page['transactions']}")
        if allowed:
            _say(f"  allowed: {allowed}")
        if is_right:
            shutil.rmtree(directory)
        else:
            _say(f"  kept in {directory}: `python -m headgate.broker.verify judge {directory / 'history'}`")
    _say(f"{rounds} rounds, {len(lives)} lives, {acked:,} acknowledged records, {wrong} lives WRONG; seed {given.seed}")
    return 1 if wrong else 0


def _lives(faults: list[str], rounds: int, rounds_per_life: int, draw: random.Random) -> list[tuple[bool, list[str]]]:
    """The faults of each life, and whether its store is S3: every second one, if that store has any of the faults.

    Every fault of a kind of store occurs once there, in a random order, before any is repeated.
    """
    pools = {False: [name for name in faults if name not in ON_S3], True: [name for name in faults if name not in ON_DEVICE]}
    kinds = [on_s3 for on_s3, pool in pools.items() if pool]
    order: dict[bool, list[str]] = {False: [], True: []}
    lives = []
    for number, at in enumerate(range(0, rounds, rounds_per_life)):
        on_s3 = kinds[number % len(kinds)]
        count = min(rounds_per_life, rounds - at)
        while len(order[on_s3]) < count:
            order[on_s3] += draw.sample(pools[on_s3], len(pools[on_s3]))
        lives.append((on_s3, order[on_s3][:count]))
        del order[on_s3][:count]
    return lives


def _say(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
