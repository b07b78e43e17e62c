"""One life of a cluster: brokers start, the verifier begins, faults occur round after round, the verifier judges."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from tests.chaos.faults import Faults, may_end
from tests.chaos.floods import Floods
from tests.chaos.transactions import Transactions
from tests.support.broker_process import BrokerProcess
from tests.support.cluster import Brokers, s3_doors
from tests.support.loop_device import LoopDevice
from tests.support.network import Network
from tests.support.s3_server import MotoServer
from tests.support.verifier import Verifier

DEVICE_BYTES = 1 << 30
RETENTION_MS = 3_600_000
"""Retention time, longer than a life: every removal by age is caused by a clock that jumped."""
FOLDED = {"offline_after_ms": "3000"}
"""Records become Parquet files within a round or two."""
ENV = {"HEADGATE_RETENTION_CHECK_INTERVAL_MS": "1000", "HEADGATE_OFFLINE_CHECK_INTERVAL_MS": "1000"}
OPTIONS = (
    "--rate",
    "300",
    "--partitions",
    "6",
    "--patience",
    "2m",
    "--topic-config",
    f"retention.ms={RETENTION_MS}",
    "--topic-config",
    f"offline.after.ms={FOLDED['offline_after_ms']}",
    "--groups",
    "2",
    "--group-protocol",
    "both",
)

Say = Callable[[str], None]


class Beside:
    """Lets `Trouble` watch the verifier instead of clients."""

    def __init__(self, verifier: Verifier, brokers: Brokers) -> None:
        self._verifier, self._brokers = verifier, brokers

    def check(self) -> None:
        self._verifier.check()

    def acked_in_all(self, more: int, *, revive: bool = False) -> None:
        self._verifier.acknowledges(meanwhile=self._brokers.revive if revive else lambda: None)


def live(
    directory: Path,
    faults: Sequence[str],
    draw: random.Random,
    say: Say,
    *,
    on_device: bool,
    on_s3: bool = False,
    with_transactions: bool = False,
    with_floods: bool = False,
    settings: Mapping[str, str] | None = None,
    settle_s: int = 30,
) -> dict[str, Any]:
    """Run one life with these faults, in this order. Returns the verifier's page.

    Args:
        on_device: whether the store is a directory on a device of its own.
        on_s3: whether the store is a bucket on S3.
        with_transactions: whether transactions run beside the faults.
        with_floods: whether each fault occurs in the middle of a flood by Spark.
        settings: of the brokers, by the names of environment variables.
        settle_s: longest wait for acknowledged records to appear, seconds. A life that loses some waits that long.

    Raises AssertionError if brokers or partitions do not come back, a broker ends without a valid reason, or its output shows a
    crash.
    """
    directory.mkdir(parents=True)
    made: list[BrokerProcess] = []
    clocks: dict[BrokerProcess, Path] = {}

    def make(store: str | Path, **options: Any) -> BrokerProcess:
        number = len(made) + 1
        broker = BrokerProcess(store, directory / f"broker-{number}.log", **options)
        clocks[broker] = directory / f"clock-{number}"
        clocks[broker].write_text("0")
        broker.entry = ("tests.support.skewed_broker", str(clocks[broker]))
        made.append(broker)
        return broker

    with contextlib.ExitStack() as opened:
        device = opened.enter_context(LoopDevice(directory / "device", DEVICE_BYTES)) if on_device else None
        network = opened.enter_context(Network())
        env, store = (
            {**ENV, **(settings or {})},
            cast("Path | Callable[[int], str]", (device.path if device else directory) / "store"),
        )
        if on_s3:
            server = MotoServer()
            opened.callback(server.stop)
            env, store = {**env, **server.environment}, s3_doors(network, server, "chaos")
        opened.callback(lambda: [broker.kill() for broker in made])
        brokers = Brokers(make, store, env=env, network=network)
        brokers.may_end = may_end
        brokers.start()
        verifier = opened.enter_context(Verifier(brokers.bootstrap, directory / "history", *OPTIONS, "--settle", f"{settle_s}s"))
        verifier.acknowledges()
        floods = Floods(brokers, directory / "sources", draw) if with_floods else None
        if floods is not None:
            opened.callback(floods.stop)
        transactions, exact = None, ""
        if with_transactions:
            transactions = Transactions(brokers, draw.randrange(1 << 30), FOLDED)
            opened.callback(transactions.stop)
        troubles = Faults(brokers, Beside(verifier, brokers), draw, network, clocks, device, floods)
        for fault in faults:
            if transactions is not None:
                transactions.feed()
            began = time.monotonic()
            done = troubles.apply(fault)
            say(f"{fault}, {done}: all is well after {time.monotonic() - began:.1f} s")
        if transactions is not None:
            exact = transactions.judge()
        _, page = verifier.end()
        page["transactions"] = exact
        if device is not None:
            # What the brokers left on the disk tells why.
            device.keeps = page["verdict"] != "right" or bool(page["deleted"])
    for broker in made:
        # A broker without memory may print an error from any line of its code; the test only requires that it runs on, or ends and
        # says why.
        broker.check_output(allowed="MemoryError" if "memory" in faults else None)
    return page
