"""``make demo``: a real Kafka client writes, the broker is killed with SIGKILL three times, and every acked record is read back.

The client is librdkafka (confluent-kafka), not ours; nothing is simulated. Exit code 0 means that no acked record was lost, none
came twice, and each partition was read in the order it was written in.
"""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.cli import output

TOPIC = "demo"
PARTITIONS = 8
RECORDS = 500_000
VALUE_BYTES = 100
UNACKED_MAX = 20_000
"""Records that the client may have on their way: enough to keep the broker busy, few enough that most are acked soon."""
KILLS_AT = (0.2, 0.5, 0.8)
"""Shares of the records that are acked when the broker is killed."""
START_TIMEOUT_S = 30.0
READ_TIMEOUT_S = 60.0


@dataclass(slots=True)
class Ledger:
    """What the client was told: every acked record's partition and offset, by its number."""

    acked: dict[int, tuple[int, int]] = field(default_factory=dict)
    failed: int = 0

    def note(self, error: object, message: Any) -> None:
        """The client's delivery report."""
        if error is not None:
            self.failed += 1
            return
        self.acked[int(message.key())] = (message.partition(), message.offset())


@dataclass(slots=True)
class Verdict:
    """What was read, compared with the ledger."""

    read: int = 0
    lost: int = 0
    twice: int = 0
    misplaced: int = 0
    """Acked at one offset, read at another."""
    disordered: int = 0
    """Read before a record of the same partition that was handed over earlier."""

    @property
    def clean(self) -> bool:
        """Whether nothing acked was harmed."""
        return not (self.lost or self.twice or self.misplaced or self.disordered)


class Broker:
    """One broker process on free ports, over one store, that can be killed and started again."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.ports = [_free_port() for _ in range(3)]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """Where Kafka clients connect to."""
        return f"127.0.0.1:{self.ports[0]}"

    def start(self) -> float:
        """Start it and wait until it serves. Returns the seconds that took."""
        began = time.monotonic()
        kafka, grpc, http = map(str, self.ports)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "broker.cli.main", "broker", "--store", str(self.store), "--log-level", "error",
             "--kafka-port", kafka, "--grpc-port", grpc, "--http-port", http],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout is not None
        if not self.process.stdout.readline():
            raise RuntimeError(f"the broker did not start. exit_code=`{self.process.wait()}`")
        return time.monotonic() - began

    def kill(self) -> None:
        """SIGKILL: it gets no chance to write anything."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM. Returns the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        if self.process is None:
            return 0
        self.process.send_signal(number)
        code = self.process.wait(START_TIMEOUT_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process = None
        return code


def main() -> int:
    """Run the demo. Returns the exit code."""
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        output.fail("confluent-kafka is missing: run `make demo`, or pip install 'headgate[demo]'", "demo")
        return output.EXIT_FAILED
    with tempfile.TemporaryDirectory(prefix="headgate-demo-") as directory:
        broker = Broker(Path(directory) / "store")
        try:
            return _play(broker)
        finally:
            if broker.process is not None:
                broker.kill()


def _play(broker: Broker) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(highlight=False)
    console.print("[bold]Headgate[/bold]: kill the broker in the middle of a stream, three times, and lose nothing")
    with Progress(TextColumn("{task.description:<34}"), BarColumn(), MofNCompleteColumn(), console=console, transient=True) as bars:
        facts: list[tuple[str, str]] = []

        def step(name: str, total: int) -> Callable[[int], None]:
            task = bars.add_task(name, total=total)
            return lambda done: bars.update(task, completed=done)

        facts.append(("broker started", f"in {broker.start():.2f} s"))
        ledger = Ledger()
        down_s = _produce(broker, ledger, step("librdkafka writes", RECORDS), facts)
        verdict = _verify(broker, ledger, step("librdkafka reads from the start", len(ledger.acked)))
        facts.append(("broker was gone", f"for {down_s:.2f} s in all, {len(KILLS_AT)} times started again on the same store"))
        facts.append(("read back", f"{verdict.read:,} records, from the first offset of all {PARTITIONS} partitions"))
        facts.append(("stopped with SIGTERM", f"exit code {broker.stop()}"))
    _show(console, facts, ledger, verdict)
    return 0 if verdict.clean and not ledger.failed and len(ledger.acked) == RECORDS else output.EXIT_FAILED


def _produce(broker: Broker, ledger: Ledger, advance: Callable[[int], None], facts: list[tuple[str, str]]) -> float:
    """Write every record, with a SIGKILL on the way. Returns the seconds without a broker."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    quiet = _quiet()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap}, logger=quiet)
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(30)
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "reconnect.backoff.max.ms": 200,
        },
        logger=quiet,
        on_delivery=ledger.note,
    )
    began, down_s, value = time.monotonic(), 0.0, b"x" * VALUE_BYTES
    kills = [int(RECORDS * share) for share in KILLS_AT]
    for number in range(RECORDS):
        producer.produce(TOPIC, value, key=str(number).encode())
        if number % 1000 == 0:
            advance(len(ledger.acked))
            while len(producer) > UNACKED_MAX:
                producer.poll(0.01)
        if kills and len(ledger.acked) >= kills[0]:
            kills.pop(0)
            facts.append(("SIGKILL", f"with {len(ledger.acked):,} records acked and {len(producer):,} on their way"))
            killed = time.monotonic()
            broker.kill()
            broker.start()
            down_s += time.monotonic() - killed
    while producer.flush(0.1):
        advance(len(ledger.acked))
    took_s = time.monotonic() - began
    facts.append(("written", f"{RECORDS:,} records of {VALUE_BYTES} B in {took_s:.1f} s"))
    return down_s


def _verify(broker: Broker, ledger: Ledger, advance: Callable[[int], None]) -> Verdict:
    """Read the whole topic with a fresh client and compare with what was acked."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "demo", "enable.auto.commit": False}, logger=_quiet())
    consumer.assign([TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    verdict, seen = Verdict(), set[int]()
    newest = dict.fromkeys(range(PARTITIONS), -1)
    deadline = time.monotonic() + READ_TIMEOUT_S
    ends = {number: consumer.get_watermark_offsets(TopicPartition(TOPIC, number), 10)[1] for number in range(PARTITIONS)}
    todo = sum(ends.values())
    while verdict.read < todo and time.monotonic() < deadline:
        for message in consumer.consume(10_000, 0.5):
            if message.error():
                continue
            number, at = int(message.key() or b"-1"), (int(message.partition() or 0), int(message.offset() or 0))
            verdict.read += 1
            verdict.twice += number in seen
            verdict.misplaced += ledger.acked.get(number, at) != at
            verdict.disordered += number <= newest[at[0]]
            newest[at[0]] = max(newest[at[0]], number)
            seen.add(number)
        advance(verdict.read)
    consumer.close()
    verdict.lost = len(ledger.acked.keys() - seen)
    return verdict


def _show(console: Any, facts: list[tuple[str, str]], ledger: Ledger, verdict: Verdict) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, text in facts:
        table.add_row(name, text)
    console.print(table)
    checks = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    checks.add_column("what could have gone wrong")
    checks.add_column("records", justify="right")
    for name, count in (
        ("acked, but not there any more", verdict.lost),
        ("there twice", verdict.twice),
        ("at another offset than was acked", verdict.misplaced),
        ("in another order within their partition", verdict.disordered),
        ("given up by the client", ledger.failed),
    ):
        checks.add_row(name, f"{count:,}", style="green" if count == 0 else "bold red")
    console.print(checks)
    if verdict.clean and not ledger.failed:
        console.print(f"[bold green]Every one of {len(ledger.acked):,} acked records is there, once, in order.[/bold green]")
    else:
        console.print("[bold red]Records were harmed. This is a bug.[/bold red]")


def _quiet() -> logging.Logger:
    """librdkafka says on stderr that a broker went away; here that is the point."""
    logger = logging.Logger("demo")
    logger.addHandler(logging.NullHandler())
    return logger


def _free_port() -> int:
    """A free port below the range from which the kernel takes ports for clients: the dead broker's port must stay free."""
    import random

    for port in random.sample(range(10_000, 30_000), 1000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port")


if __name__ == "__main__":
    sys.exit(main())
