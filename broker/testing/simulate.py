"""Run seeds of the simulated cluster: ``python -m headgate.broker.testing.simulate --seed 17`` or ``--seeds 0-9999``.

One seed is one life of a cluster: brokers, clients, a store and a network in virtual time, with faults that the seed chose. At
the end the checkers compare the answers that clients got with the records of a fresh broker. The same seed gives the same life,
to the last event. A seed that fails is printed with the command that replays it and shows its events.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from multiprocessing.pool import Pool
from queue import SimpleQueue
from typing import TypeAlias

Work: TypeAlias = tuple[int, bool, str]
"""(seed, long life or not, planted bug)."""
Result: TypeAlias = tuple[int, str, str | None, int]
"""(seed, digest, error, acked records)."""

COLLECT_SEEDS = 10
AHEAD_SEEDS = 1
"""Seeds that each process runs or has queued. More of them would run on after the end of `--seconds`."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m headgate.broker.testing.simulate", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, help="run this seed and tell its story")
    parser.add_argument("--seeds", default="0-999", help="run these, as 0-999")
    parser.add_argument("--seconds", type=float, default=0.0, help="begin no more seeds after this many seconds; 0: run all")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--long", action="store_true", help="longer lives: more partitions, records and faults")
    parser.add_argument("--first", action="store_true", help="end with the first seed that fails")
    parser.add_argument("--expect", nargs="*", default=[], help="with --bug: only what these checkers find is a failure")
    parser.add_argument("--digests", action="store_true", help="print every seed's digest")
    parser.add_argument("--quiet", action="store_true", help="with --seed: only how it ended")
    parser.add_argument("--bug", default="", help="plant a bug (canaries.py) that the seeds are to find")
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Without a fixed PYTHONHASHSEED each process iterates sets of strings in another order.
        os.execve(
            sys.executable,
            [sys.executable, "-m", "headgate.broker.testing.simulate", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    if arguments.seed is not None:
        return _one(arguments)
    return _many(arguments)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _one(arguments: argparse.Namespace) -> int:
    from headgate.broker.testing.simulation.scenario import simulate

    out = None if arguments.quiet else sys.stdout
    outcome = simulate(arguments.seed, long=arguments.long, out=out, patches=_patches(arguments.bug))
    _say(
        f"seed={arguments.seed} digest={outcome.digest} events={outcome.events} acked={outcome.acked} faults={outcome.faults} "
        f"virtual_s={outcome.virtual_s:.1f} callbacks={outcome.handles}"
    )
    if outcome.failure is None:
        return 0
    _say(f"FAILED {outcome.failure}")
    return 1


def _patches(bug: str) -> Mapping[str, object] | None:
    from headgate.broker.testing.simulation.canaries import BUGS

    return BUGS[bug]() if bug else None


def _run(work: Work) -> Result:
    from headgate.broker.testing.simulation.scenario import simulate

    seed, long, bug = work
    outcome = simulate(seed, long=long, patches=_patches(bug))
    if seed % COLLECT_SEEDS == 0:
        gc.collect()
    return seed, outcome.digest, outcome.failure, outcome.acked


def _many(arguments: argparse.Namespace) -> int:
    first, _, last = arguments.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    began_s = time.monotonic()

    def work() -> Iterator[Work]:
        for seed in seeds:
            if arguments.seconds and time.monotonic() - began_s > arguments.seconds:
                return
            yield seed, arguments.long, arguments.bug

    done = failed = acked = 0
    pool = multiprocessing.get_context("spawn").Pool(arguments.jobs) if arguments.jobs > 1 else None
    results = map(_run, work()) if pool is None else _spread(pool, work(), arguments.jobs * AHEAD_SEEDS)
    last_done = None
    for seed, digest, failure, records in results:
        done += 1
        last_done = seed if last_done is None else max(last_done, seed)
        acked += records
        if arguments.digests:
            _say(f"{seed} {digest}")
        if failure is not None and (not arguments.expect or failure.startswith(tuple(arguments.expect))):
            failed += 1
            options = (" --long" if arguments.long else "") + (f" --bug {arguments.bug}" if arguments.bug else "")
            _say(f"FAILED {failure}\n    python -m headgate.broker.testing.simulate --seed {seed}{options}")
            if arguments.first:
                break
    if pool is not None:
        pool.terminate()
    _say(
        f"seeds={done} last_seed={'none' if last_done is None else last_done} failed={failed} acked_records={acked} "
        f"seconds={time.monotonic() - began_s:.1f}"
    )
    return 1 if failed else 0


def _spread(pool: Pool, work: Iterator[Work], ahead: int) -> Iterator[Result]:
    """The results of all work, in the order of completion. The pool has at most `ahead` items at a time.

    `Pool.imap_unordered` takes all work at once, so a limit in `work` would never be reached.
    """
    results: SimpleQueue[Result | BaseException] = SimpleQueue()
    under_way = 0
    while True:
        for seed in islice(work, ahead - under_way):
            pool.apply_async(_run, (seed,), callback=results.put, error_callback=results.put)
            under_way += 1
        if not under_way:
            return
        result = results.get()
        under_way -= 1
        if isinstance(result, BaseException):
            raise result
        yield result


if __name__ == "__main__":
    sys.exit(main())
