"""Brokers of a cluster are killed, paused and cut off, round after round, under foreign clients; no acked record may be harmed.

Runs: three real brokers over one directory, or over one S3 (a moto server). They reach each other and S3 through ports that the
test can cut (`tests/support/network.py`). Idempotent producers and consumers of librdkafka and aiokafka run all the time. Each
round has one fault for one broker, which is the cluster's leader in every second round. The broker's clock is moved; or it is
killed (SIGKILL), drained (SIGTERM), or paused for up to 20 s and resumed; or it is cut off from the other brokers while clients
and the store still reach it, cut off from the store, or from both. A broker that was replaced meanwhile must end with exit code
3, and is restarted; no broker may end otherwise. Compared, at the end: the whole topic with every ack and with the reads of the
consumers (`tests/support/history.py`). A mismatch means that an acked record was lost, repeated, reordered, moved, or readable
before it was safe. The verifier, which shares no code with the brokers, judges a topic of its own beside it.

HEADGATE_CHAOS_ROUNDS sets the number of rounds of the long forms, HEADGATE_CHAOS_SEED replays a run's choices.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.topics import create_topic
from tests.conftest import BrokerFactory
from tests.support.cluster import Brokers, Clients, Trouble, s3_doors
from tests.support.network import Network
from tests.support.s3_server import S3Server
from tests.support.verifier import Verifier

SEED = int(os.environ.get("HEADGATE_CHAOS_SEED", time.time_ns() % 1_000_000))
ROUNDS = int(os.environ.get("HEADGATE_CHAOS_ROUNDS", "30"))
PARTITIONS = 6
HOUR_MS = 3_600_000
PAUSE_S = 0.03
"""Pause between two bursts of a writer: the final read takes all records of a run of many minutes at once."""
QUICK_S = 3.5
"""Length of a pause or cut in the short form, seconds: long enough that the victim is replaced."""

Report = Callable[[str], None]


def run(
    make: BrokerFactory,
    report: Report,
    ways: list[str],
    rounds: int,
    *,
    label: str,
    s3: S3Server | Path,
    seconds: float | None,
    history: Path,
    ack: str = "durable",
    clocks: Path | None = None,
) -> Brokers:
    draw = random.Random(f"{SEED}-{label}")
    with Network() as network:
        # Extra ports cost time: only runs with cuts use them.
        cuts = {"peers", "store", "alone"} & set(ways)
        store: Path | Callable[[int], str]
        env = None
        if isinstance(s3, Path):
            store = s3
        else:
            env, url = dict(s3.environment), s3.url(s3.bucket(), "chaos")
            if ack == "replicated":
                # Long enough that most acked records are not in the store yet when their leader dies.
                env["HEADGATE_WAL_FLUSH_INTERVAL_MS"] = "1000"
                # A killed broker is noticed at once. A slow broker must not count as lost: that would be a second failure.
                env["HEADGATE_CLUSTER_MEMBER_TIMEOUT_MS"] = "10000"
            store = s3_doors(network, s3, "chaos") if cuts - {"peers"} else lambda number: url
        if clocks is not None:
            env = {**(env or {}), "HEADGATE_RETENTION_CHECK_INTERVAL_MS": "100"}
        brokers = Brokers(make, store, env=env, network=network if cuts else None, clocks=clocks)
        try:
            brokers.start()
            create_topic(brokers.bootstrap, "t", PARTITIONS, ack=ack, retention_ms=str(HOUR_MS))
            options = ("--rate", "100", "--partitions", "3", "--settle", "60s", "--patience", "2m", "--topic-config", f"ack={ack}")
            with (
                Clients(brokers, "t", PARTITIONS, pause_s=PAUSE_S) as clients,
                Verifier(brokers.bootstrap, history, *options) as verifier,
            ):
                verifier.acknowledges()
                clients.acked_in_all(5)
                trouble = Trouble(brokers, clients, draw, network if cuts else None)
                for number in range(rounds):
                    trouble.round(ways[number % len(ways)], on_leader=number // len(ways) % 2 == 0, seconds=seconds)
                _, page = verifier.end()
                wrong = clients.judge()
        finally:
            network.heal()
            for broker in brokers.all:
                broker.kill()
    report(f"chaos {label}: {clients.acked:,} acked; {trouble.line()}; HEADGATE_CHAOS_SEED={SEED}")
    assert page["verdict"] == "right", f"seed=`{SEED}` history=`{history}` {page['summary']}"
    assert not wrong, f"seed=`{SEED}` complaints=`{len(wrong)}`\n" + "\n".join(wrong[:20])
    return brokers


def test_some_rounds_with_copies_in_memory(make_broker: BrokerFactory, s3_server: S3Server, report: Report, tmp_path: Path) -> None:
    """`ack=replicated`: records that the lost broker's WAL lacks come from its follower."""
    brokers = run(
        make_broker,
        report,
        ["kill"],
        2,
        label="replicated",
        s3=s3_server,
        seconds=QUICK_S,
        ack="replicated",
        history=tmp_path / "history",
    )
    assert any("copies_recovered" in broker.log_path.read_text() for broker in brokers.all), "nobody was asked for copies"


def test_some_rounds_with_clocks_that_jump(make_broker: BrokerFactory, tmp_path: Path, report: Report) -> None:
    """Retention is an hour, and runs ten times a second: a broker that believes its clock would remove records that were just
    acked."""
    ways = ["clock", "clock and kill"]
    run(
        make_broker,
        report,
        ways,
        3,
        label="clocks",
        s3=tmp_path / "store",
        seconds=None,
        clocks=tmp_path,
        history=tmp_path / "history",
    )


def test_some_rounds_on_s3(make_broker: BrokerFactory, s3_server: S3Server, report: Report, tmp_path: Path) -> None:
    run(make_broker, report, ["kill", "peers", "store"], 3, label="S3", s3=s3_server, seconds=QUICK_S, history=tmp_path / "history")


ON_A_DIRECTORY = ("kill", "drain", "pause", "peers")
ROUNDS_LONG = [
    ("directory", "durable", ["clock", "clock and kill", "clock", "pause"]),
    *[("directory", "durable", [way]) for way in ON_A_DIRECTORY],
    *[("S3", ack, [way]) for way in (*ON_A_DIRECTORY, "store", "alone") for ack in ("durable", "replicated")],
]


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("store", "ack", "ways"), ROUNDS_LONG, ids=lambda value: value if isinstance(value, str) else value[0])
def test_rounds(
    make_broker: BrokerFactory,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    report: Report,
    store: str,
    ack: str,
    ways: list[str],
) -> None:
    run(
        make_broker,
        report,
        ways,
        ROUNDS,
        label=f"{ways[0]} {ack} {store} long",
        s3=request.getfixturevalue("s3_server") if store == "S3" else tmp_path / "store",
        seconds=None,
        ack=ack,
        clocks=tmp_path if "clock" in ways else None,
        history=tmp_path / "history",
    )
