"""What security costs: TLS against plaintext and against a bare TLS peer, logins, permissions, and attacks beside live producers.

One connection with eight requests in flight, by a client in Python (`secure.py`). CPU is the broker's, so the client's own does not
count. All brokers have the store `memory:`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from headgate.broker.client.access_admin import AccessAdmin, Acl
from tests.bench.brokers import ROOT, Broker
from tests.bench.clients import costed, live
from tests.bench.harness import MEMORY, Bench, Case
from tests.bench.native import BenchError, cpu_seconds, free_port
from tests.bench.report import Goal, Row, format_rate, paired
from tests.bench.secure import TOPIC
from tests.support.pki import Authority

GROUP = "security"
BATCH_BYTES = 64 << 10
SMALL_BATCH_BYTES = 1 << 10
PASSWORD = "bench-password"
RULES = 10_000
RULES_PER_CALL = 5_000
RULES_GOAL = 1.05
TLS_PEER_GOAL = 0.5
ATTACKS_PER_S = 1000
ATTACKERS = 4
"""Processes that attack together: one cannot open 1,000 connections a second."""
ATTACK_ROUNDS = 5
ATTACK_GOAL = 2.0
LIVE_S = 4
SETTLE_S = 1
"""Seconds of a live producer before its measurement."""


class Secure:
    """A broker with TLS, logins and permissions. `ports`: by protocol."""

    def __init__(self, broker: Broker, ports: dict[str, int], authority: Authority) -> None:
        self.broker = broker
        self.ports = ports
        self.ca = str(authority.ca)

    def admin(self) -> AccessAdmin:
        return AccessAdmin(
            f"tls://localhost:{self.broker.grpc_port}?ca={self.ca}&user=admin&password_file={Path(self.ca).parent}/password"
        )


@contextlib.contextmanager
def secure(bench: Bench) -> Iterator[Secure]:
    """A broker with four Kafka ports: plaintext, TLS, and both with logins."""
    place = bench.fresh_directory("pki")
    authority = Authority(place)
    pem, key = authority.issue("broker")
    (place / "password").write_text(PASSWORD)
    ports = {protocol: free_port() for protocol in ("SSL", "SASL_SSL", "SASL_PLAINTEXT")}
    settings = {
        "tls.certificate": str(pem),
        "tls.key": str(key),
        "tls.ca": str(authority.ca),
        "grpc.mtls.port": str(free_port()),
        "kafka.listeners": ",".join(f"{protocol}://127.0.0.1:{port}" for protocol, port in ports.items()),
        "authorization": "acl",
        "failed.logins.per.s": "1",
        "super.users": "User:ANONYMOUS",
        "admin.password.file": str(place / "password"),
        "log.level": "error",
    }
    with bench.broker(MEMORY, settings=settings) as broker:
        broker.create_topic(TOPIC, 1, {"retention.bytes": str(64 << 20)})
        yield Secure(broker, {**ports, "PLAINTEXT": broker.kafka_port}, authority)


@contextlib.contextmanager
def bare_peer(bench: Bench, mode: str) -> Iterator[tuple[int, int, str]]:
    """A bare TLS peer: (port, process, certificate of its authority)."""
    place = bench.fresh_directory("pki")
    authority = Authority(place)
    pem, key = authority.issue("peer")
    command = [sys.executable, "-m", "tests.bench.secure", "peer", str(pem), str(key), mode, str(BATCH_BYTES)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline()), process.pid, str(authority.ca)
        finally:
            process.kill()


def _flow(pid: int, port: int, ca: str, mode: str, seconds: float, *login: str) -> tuple[float, float]:
    """(bytes per second, CPU-seconds per byte)."""
    done, cpu_s = costed(pid, "secure", "flow", port, ca, mode, BATCH_BYTES, seconds, *login)
    return done["bytes"] / done["seconds"], cpu_s / done["bytes"]


def _tls(mode: str) -> Case:
    def run(bench: Bench) -> Iterable[Row]:
        with secure(bench) as ours, bare_peer(bench, mode) as (peer_port, peer_pid, peer_ca):
            pid, seconds = ours.broker.pid, bench.sample_s * 2
            _flow(pid, ours.ports["PLAINTEXT"], "", "produce", 0.1)  # something to fetch
            taken: dict[str, list[tuple[float, float]]] = {"plain": [], "tls": [], "peer": []}
            for _ in range(bench.pairs):
                bench.wait_quiet()
                taken["plain"].append(_flow(pid, ours.ports["PLAINTEXT"], "", mode, seconds))
                taken["tls"].append(_flow(pid, ours.ports["SSL"], ours.ca, mode, seconds))
                taken["peer"].append(_flow(peer_pid, peer_port, peer_ca, mode, seconds))
        rate, cpu = ({name: [one[at] for one in found] for name, found in taken.items()} for at in (0, 1))
        yield _compared(f"{mode} 64 KB over TLS, of plaintext", rate["tls"], rate["plain"])
        yield _compared(f"{mode} 64 KB over TLS, of a bare TLS peer", rate["tls"], rate["peer"], goal=TLS_PEER_GOAL)
        yield _cpu(f"{mode} 64 KB over TLS: CPU, of plaintext", cpu["tls"], cpu["plain"])
        yield _cpu(f"{mode} 64 KB over TLS: CPU, of a bare TLS peer", cpu["tls"], cpu["peer"])

    return Case(GROUP, f"{mode} 64 KB over TLS", run)


def _compared(case: str, ours: Sequence[float], theirs: Sequence[float], goal: float | None = None) -> Row:
    ratio = paired(ours, theirs)
    return Row(
        group=GROUP, case=case, measured=format_rate(_middle(ours)), ceiling=format_rate(_middle(theirs)), ratio=ratio.median,
        low=ratio.low, high=ratio.high, goal=goal,
    )  # fmt: skip


def _cpu(case: str, ours: Sequence[float], theirs: Sequence[float], goal: float | None = None) -> Row:
    ratio = paired(ours, theirs)
    return Row(
        group=GROUP, case=case, measured=f"{_middle(ours) * 1e9:.2f} s/GB", ceiling=f"{_middle(theirs) * 1e9:.2f} s/GB",
        ratio=ratio.median, low=ratio.low, high=ratio.high, goal=goal, side=Goal.AT_MOST,
    )  # fmt: skip


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _rates(bench: Bench) -> Iterable[Row]:
    with secure(bench) as ours:
        pid, seconds = ours.broker.pid, bench.sample_s * 5
        for what, protocol, login in (
            ("handshake", "SSL", ()),
            ("login", "SASL_SSL", ("admin", PASSWORD)),
            ("login", "SASL_PLAINTEXT", ("admin", PASSWORD)),
        ):
            ca = "" if protocol == "SASL_PLAINTEXT" else ours.ca
            bench.wait_quiet()
            done, cpu_s = costed(pid, "secure", "knock", ours.ports[protocol], ca, what, seconds, 0, *login)
            yield Row(
                group=GROUP,
                case=f"{what}s, {'SCRAM, ' if login else ''}{'TLS' if ca else 'plaintext'}, one client",
                measured=f"{done['count'] / done['seconds']:.0f}/s",
                note=f"{cpu_s / done['count'] * 1e3:.2f} ms of the broker's CPU each",
            )


def _rules(bench: Bench) -> Iterable[Row]:
    """The same broker before and after it has the rules: each produce request of a new connection asks them once."""
    with secure(bench) as few, secure(bench) as many:
        for one in (few, many):
            asyncio.run(_allow(one, 1))
        asyncio.run(_allow(many, RULES))
        before, after = [], []
        for _ in range(bench.pairs):
            bench.wait_quiet()
            for ours, into in ((few, before), (many, after)):
                arguments = (ours.ports["SASL_PLAINTEXT"], "", "produce", SMALL_BATCH_BYTES, bench.sample_s * 2, "alice", PASSWORD)
                done, cpu_s = costed(ours.broker.pid, "secure", "flow", *arguments)
                into.append(cpu_s / done["requests"])
    ratio = paired(after, before)
    yield Row(
        group=GROUP,
        case=f"produce of 1 KB batches with {RULES:,} rules: CPU, of one rule",
        measured=f"{_middle(after) * 1e6:.1f} us",
        ceiling=f"{_middle(before) * 1e6:.1f} us",
        ratio=ratio.median,
        low=ratio.low,
        high=ratio.high,
        goal=RULES_GOAL,
        side=Goal.AT_MOST,
    )


async def _allow(ours: Secure, rules: int) -> None:
    """Let alice write to the topic; with more rules, most are about other topics, users and prefixes."""
    async with ours.admin() as admin:
        if rules == 1:
            await admin.create_user("alice", PASSWORD)
            await admin.add_acls([Acl(resource="topic", name=TOPIC, principal="User:alice", operation="write")])
            return
        made = [
            Acl(
                resource="topic",
                name=f"{'' if number % 2 else TOPIC}{number}",
                pattern="prefixed" if number % 4 == 0 else "literal",
                principal=f"User:{'alice' if number % 3 == 0 else f'user-{number}'}",
                operation="write" if number % 5 else "read",
            )
            for number in range(rules)
        ]
        for at in range(0, rules, RULES_PER_CALL):
            await admin.add_acls(made[at : at + RULES_PER_CALL])


def _attack(what: str) -> Case:
    def run(bench: Bench) -> Iterable[Row]:
        quiet: list[float] = []
        loud: list[float] = []
        cpu_s = attempts = 0.0
        with secure(bench) as ours:
            port = ours.ports["SASL_SSL"]
            # The live producer has their core, too, and must not wait for them there: the broker is measured.
            command = ["nice", "-n", "19", sys.executable, "-m", "tests.bench.secure", "knock", str(port), ours.ca, what]
            options = [str(LIVE_S * 3), str(ATTACKS_PER_S / ATTACKERS), "admin", "wrong"]
            for _ in range(ATTACK_ROUNDS):
                quiet.append(_live(bench, ours))
                attackers = [subprocess.Popen([*command, *options], stdout=subprocess.PIPE, cwd=ROOT) for _ in range(ATTACKERS)]
                try:
                    before = cpu_seconds(ours.broker.pid)
                    loud.append(_live(bench, ours))
                    cpu_s += cpu_seconds(ours.broker.pid) - before
                finally:
                    attempts += sum([_count(one) for one in attackers])
        ratio = paired(loud, quiet)
        yield Row(
            group=GROUP,
            case=f"live p99 beside {what}s, of quiet",
            measured=f"{_middle(loud):.1f} ms",
            ceiling=f"{_middle(quiet):.1f} ms",
            ratio=ratio.median,
            low=ratio.low,
            high=ratio.high,
            unit="x",
            goal=ATTACK_GOAL,
            side=Goal.AT_MOST,
            note=f"{attempts / (LIVE_S * 3 * ATTACK_ROUNDS):.0f} attempts/s of {ATTACKS_PER_S} wanted; broker's CPU {cpu_s:.1f} s",
        )

    return Case(GROUP, f"live p99 beside {what}s", run, goal=ATTACK_GOAL, side=Goal.AT_MOST, unit="x")


def _live(bench: Bench, ours: Secure) -> float:
    """p99 of a live producer, ms."""
    with live(ours.broker.kafka_port, TOPIC, None) as producer:
        time.sleep(SETTLE_S)
        producer.begin()
        time.sleep(LIVE_S)
        return producer.p99_ms()


def _count(process: subprocess.Popen[bytes]) -> int:
    """The attempts of an attacker, when it has ended."""
    out, _ = process.communicate(timeout=LIVE_S * 10)
    if process.returncode:
        raise BenchError("an attacker failed")
    return int(json.loads(out)["count"])


CASES = [
    _tls("produce"),
    _tls("fetch"),
    Case(GROUP, "handshakes and logins", _rates),
    Case(GROUP, f"{RULES:,} rules", _rules, goal=RULES_GOAL, side=Goal.AT_MOST),
    _attack("bad handshake"),
    _attack("bad password"),
]
