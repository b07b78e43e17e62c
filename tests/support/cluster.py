"""A cluster of real brokers for tests, the clients that run on it, and faults that hit one of its brokers.

`Brokers` are processes of one cluster, on a directory or on S3. `Clients` are foreign producers and consumers that run all the
time; checkers judge their histories at the end. `Trouble` ends, stops, pauses or cuts off one broker.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import grpc
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from headgate.broker.wire.grpc.headgate.v1 import control_pb2
from headgate.broker.wire.grpc.methods import methods
from tests.compat.topics import create_topic
from tests.conftest import BrokerFactory
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.clients.all import CLIENTS
from tests.support.history import check_log, check_reader, check_writer
from tests.support.network import Network
from tests.support.s3_server import S3Server
from tests.support.skewed_broker import set_clock, use_clock
from tests.support.waiting import until
from tests.support.writers import AiokafkaReader, AiokafkaWriter, ConfluentReader, ConfluentWriter, Reader, Writer

PATIENCE_S = 120.0
"""Ends a hang; no test judges by it."""
EXIT_FENCED = 3
SHUTDOWN_MS = 100_000
"""Longest time that each part of a broker may take to end: on a busy machine a clean end takes long."""
LOOK_AGAIN = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.BROKER_NOT_AVAILABLE)
"""Answers after which a client looks for the partition's lead and asks again. Right after a fault any broker may give them, and
librdkafka's ListOffsets hands them to its caller."""
CONTROL = methods(control_pb2.DESCRIPTOR.services_by_name["Control"])
PATIENT = {
    "HEADGATE_CLUSTER_MEMBER_TIMEOUT_MS": "30s",
    "HEADGATE_CLUSTER_LEASE_TTL_MS": "30s",
    "HEADGATE_CLUSTER_MERGE_AFTER_MS": "1h",
}
"""Settings for tests whose brokers never hang: on a busy machine no living broker counts as lost, and the leader merges no idle
segments. A killed broker is noticed at once."""


HOUR_S = 3600
JUMPS_S = (48 * HOUR_S, 720 * HOUR_S, -720 * HOUR_S, HOUR_S, -HOUR_S, 5, 0)
"""Clock errors in seconds: 2 and 30 days, an hour, a little, or none."""


class Brokers:
    """Brokers 1, 2, 3 of one cluster.

    Args:
        store: of each broker: a directory, or a URL.
        network: if given, brokers reach each other through its ports.
        clocks: a directory; if given, each broker has its own wall clock, which `Trouble` makes jump.
    """

    def __init__(
        self,
        make: BrokerFactory,
        store: Path | Callable[[int], str],
        *,
        env: Mapping[str, str] | None = None,
        network: Network | None = None,
        clocks: Path | None = None,
        count: int = 3,
    ) -> None:
        self.all: list[BrokerProcess] = []
        self.clocks: list[Path] = []
        """The file of each broker's clock, if brokers have their own."""
        env = {"HEADGATE_SHUTDOWN_TIMEOUT_MS": str(SHUTDOWN_MS), **(env or {})}
        self.may_end: Callable[[BrokerProcess], bool] = lambda broker: False
        """Returns True if a broker that ended by itself, without being replaced, had a valid reason."""
        self.revived = 0
        """Brokers that were replaced while they lived, and were started again."""
        for number in range(1, count + 1):
            where = store(number) if callable(store) else store
            broker = make(where, env=env, arguments=("--broker-id", str(number)))
            if network is not None:
                broker.arguments += ("--advertised-grpc-port", str(network.door(str(number), broker.grpc_port)))
                broker.forked = False  # a forked process has no command line, by which the network knows it
            if clocks is not None:
                self.clocks.append(clocks / f"clock-{number}")
                use_clock(broker, self.clocks[-1])
            self.all.append(broker)

    def start(self) -> None:
        """Start those that do not run, and wait until all know each other."""
        for broker in self.all:
            if not broker.running:
                broker.spawn()
        for broker in self.all:
            broker.wait_serving(PATIENCE_S)
            broker.wait_ready(PATIENCE_S)
        until(lambda: len(self.metadata().brokers) == len(self.all), "all brokers are known")

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.all)

    def number(self, broker: BrokerProcess) -> int:
        return self.all.index(broker) + 1

    def others(self, victim: BrokerProcess) -> str:
        """The bootstrap servers without the victim."""
        return ",".join(broker.bootstrap for broker in self.all if broker is not victim)

    def metadata(self, bootstrap: str | None = None) -> Any:
        return AdminClient({"bootstrap.servers": bootstrap or self.bootstrap, "log_level": 0}).list_topics(timeout=60)

    def leader(self) -> BrokerProcess:
        return self.all[self.metadata().controller_id - 1]

    def leads(self, topic: str, bootstrap: str | None = None) -> dict[int, int]:
        """The leader of every partition, from a broker that knows the topic already (the topic may be new)."""
        told: Any = None

        def is_known() -> bool:
            nonlocal told
            told = self.metadata(bootstrap).topics.get(topic)
            return told is not None

        until(is_known, f"the topic `{topic}` is known")
        return {number: partition.leader for number, partition in told.partitions.items()}

    def spread(self, topic: str, partitions: int) -> None:
        """Create a topic of which each broker leads a part, and each knows that."""

        def is_spread() -> bool:
            create_topic(self.bootstrap, topic, partitions)
            told = [self.leads(topic, broker.bootstrap) for broker in self.all]
            if set(told[0].values()) == set(range(1, len(self.all) + 1)) and all(one == told[0] for one in told):
                return True
            AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}).delete_topics([topic])[topic].result(PATIENCE_S)
            return False

        # A broker that is busier than the others from its start gets no partition of a new topic.
        until(is_spread, "a new topic is divided among all brokers")

    def control(self, method: str, request: Any) -> Any:
        """Call the leader's `Control` service."""
        found = CONTROL[method]
        with grpc.insecure_channel(f"{HOST}:{self.leader().grpc_port}") as channel:
            return found.response.FromString(channel.unary_unary(found.path)(request.SerializeToString(), timeout=30))

    def describe(self) -> Any:
        return self.control("Describe", control_pb2.DescribeRequest())

    def segments(self, topic: str) -> list[Any]:
        """The open segments of a topic, in order."""
        return sorted((row for row in self.describe().segments if row.topic == topic), key=lambda row: row.first_partition)

    def revive(self) -> None:
        """Restart each broker that was replaced. Fails if a broker ended for a reason that `may_end` does not allow."""
        for broker in self.all:
            if not broker.running:
                code = broker.exit_code()
                assert code == EXIT_FENCED or self.may_end(broker), f"a broker ended by itself. exit=`{code}`\n{broker.log_tail()}"
                broker.spawn()
                self.revived += 1


class Clients:
    """Idempotent producers and consumers of librdkafka and aiokafka, with all brokers as bootstrap servers. A context manager.

    Args:
        pause_s: between two bursts of a writer, seconds. Two writers without pauses take more of the processors than three brokers.
    """

    def __init__(self, brokers: Brokers, topic: str, partitions: int, *, pause_s: float = 0.02) -> None:
        self._brokers, self.topic, self.partitions = brokers, topic, partitions
        bootstrap = brokers.bootstrap
        self.writers: list[Writer] = [
            ConfluentWriter(bootstrap, topic, partitions, 0, idempotent=True, codec="lz4"),
            AiokafkaWriter(bootstrap, topic, partitions, 1, idempotent=True, codec="none"),
        ]
        self.readers: list[Reader] = [reader(bootstrap, topic, partitions) for reader in (ConfluentReader, AiokafkaReader)]
        for writer in self.writers:
            writer.pause_s = pause_s

    def __enter__(self) -> Self:
        for one in (*self.writers, *self.readers):
            one.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for one in (*self.writers, *self.readers):
            one.stop()

    @property
    def acked(self) -> int:
        return sum(writer.sent.acked_count for writer in self.writers)

    def counts(self) -> dict[tuple[int, int], int]:
        """Acks so far, by writer and partition."""
        return {
            (writer.sent.number, number): len(writer.sent.acks.get(number, ()))
            for writer in self.writers
            for number in range(self.partitions)
        }

    def check(self) -> None:
        for one in (*self.writers, *self.readers):
            one.check()

    def acked_in_all(self, more: int, *, revive: bool = False, timeout_s: float = PATIENCE_S) -> None:
        """Wait until every writer has `more` new acks in every partition. `revive`: restart replaced brokers meanwhile."""
        before = self.counts()

        def more_came() -> bool:
            self.check()
            if revive:
                self._brokers.revive()
            return not stuck()

        def stuck() -> list[tuple[int, int]]:
            now = self.counts()
            return [key for key, count in before.items() if now[key] < count + more]

        until(more_came, lambda: f"every partition acks again. (writer, partition) without acks=`{stuck()}`", timeout_s)

    def judge(self) -> list[str]:
        """Stop everything, read the whole topic, and return the complaints."""
        for writer in self.writers:
            writer.stop()
        for writer in self.writers:
            writer.join(PATIENCE_S)
        # With `ack=replicated`, an acked record can be read only once it is in the store.
        until(self._readable, "everything that was acked can be read")
        shown = CLIENTS["confluent"].consume(self._brokers.bootstrap, self.topic, range(self.partitions))
        log = {partition: [(read.offset, read.value or b"") for read in reads] for partition, reads in shown.items()}
        for reader in self.readers:
            reader.finish({partition: records[-1][0] for partition, records in log.items() if records}, PATIENCE_S)
        wrong = check_log(log)
        for writer in self.writers:
            wrong += check_writer(writer.sent, log)
        for reader in self.readers:
            wrong += check_reader(type(reader).__name__, reader.seen, log)
        return wrong

    def _readable(self) -> bool:
        consumer = Consumer({"bootstrap.servers": self._brokers.bootstrap, "group.id": "unused", "log_level": 0})
        try:
            places = [TopicPartition(self.topic, partition) for partition in range(self.partitions)]
            ends = {place.partition: consumer.get_watermark_offsets(place, timeout=30)[1] for place in places}
        except KafkaException as error:
            if error.args[0].code() not in LOOK_AGAIN:
                raise
            return False
        finally:
            consumer.close()
        return all(
            offset < ends[partition]
            for writer in self.writers
            for partition, acks in writer.sent.acks.items()
            for _, offset in acks
        )


class Watched(Protocol):
    """The interface through which `Trouble` watches the clients that run beside it."""

    def check(self) -> None:
        """Raise if a client has failed."""

    def acked_in_all(self, more: int, *, revive: bool = False) -> None:
        """Wait until every partition has acked again."""


class Trouble:
    """The fault of one broker in one round.

    Args:
        network: cuts brokers off from each other, and from the store (named "store"); None: it cannot.
    """

    def __init__(self, brokers: Brokers, clients: Watched, draw: random.Random, network: Network | None = None) -> None:
        self._brokers, self._clients, self._draw, self._network = brokers, clients, draw, network
        self.took: dict[str, list[float]] = {}
        """Seconds from the beginning of a fault until every partition acks again, by kind."""

    def round(self, how: str, *, on_leader: bool, seconds: float | None = None) -> None:
        """Inject one fault into one broker; afterwards all brokers run and every partition acks.

        Args:
            how: "clock" (its wall clock jumps), "clock and kill" (and it is killed at once), "kill", "drain", "pause",
                "peers" (cut off from the other brokers), "store" (from the store), "alone" (from both).
            seconds: duration of a fault that lasts; None: random.
        """
        brokers = self._brokers
        victim = brokers.leader() if on_leader else self._draw.choice(brokers.all)
        began = time.monotonic()
        if how.startswith("clock"):
            self._jump(victim)
            how = "kill" if how == "clock and kill" else how
        if how in ("kill", "drain"):
            getattr(self, f"_{how}")(victim)
            if self._network is not None:
                self._network.shut(str(brokers.number(victim)))
            self._clients.acked_in_all(1)
        elif how == "clock":
            self._clients.acked_in_all(20)
        else:
            lasts_s = self._draw.choice([self._draw.uniform(1, 4), self._draw.uniform(1, 20)]) if seconds is None else seconds
            (self._pause if how == "pause" else self._cut)(victim, how, lasts_s)
            self._clients.acked_in_all(1, revive=True)
        self.took.setdefault(how, []).append(time.monotonic() - began)
        if how in ("kill", "drain"):
            if self._network is not None:
                self._network.open(str(brokers.number(victim)))
            victim.start(PATIENCE_S)
        self.recover()

    def recover(self) -> None:
        """Wait until all brokers run and are members, and every partition acks."""
        until(self._all_there, "all brokers are members")
        self._clients.acked_in_all(5, revive=True)

    def _jump(self, victim: BrokerProcess) -> None:
        """Make the victim's wall clock wrong from now on, or right again."""
        wrong_s = self._draw.choice(JUMPS_S)
        set_clock(self._brokers.clocks[self._brokers.number(victim) - 1], wrong_s)

    def _kill(self, victim: BrokerProcess) -> None:
        victim.kill()

    def _drain(self, victim: BrokerProcess) -> None:
        code = victim.terminate(PATIENCE_S)
        # A busy machine may have had it replaced just before: `_wait` and `revive` allow that, too.
        assert code in (0, EXIT_FENCED), f"SIGTERM did not end the broker cleanly. exit=`{code}`\n{victim.log_tail()}"

    def _pause(self, victim: BrokerProcess, how: str, seconds: float) -> None:
        victim.signal(signal.SIGSTOP)
        try:
            self._wait(seconds)
        finally:
            victim.signal(signal.SIGCONT)

    def _cut(self, victim: BrokerProcess, how: str, seconds: float) -> None:
        assert self._network is not None
        mine = str(self._brokers.number(victim))
        peers = [str(self._brokers.number(broker)) for broker in self._brokers.all if broker is not victim]
        ends = {"peers": peers, "store": ["store"], "alone": [*peers, "store"]}[how]
        self._network.cut(*((mine, end) for end in ends))
        try:
            self._wait(seconds)
        finally:
            self._network.heal()

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._clients.check()
            for broker in self._brokers.all:
                code = broker.exit_code()
                assert code in (None, EXIT_FENCED), f"a broker ended by itself. exit=`{code}`\n{broker.log_tail()}"
            time.sleep(0.05)

    def _all_there(self) -> bool:
        self._brokers.revive()
        try:
            return len(self._brokers.metadata().brokers) == len(self._brokers.all)
        except Exception:  # noqa: BLE001  # one of them is just starting
            return False

    def line(self) -> str:
        """The measured times, as text."""
        parts = []
        for how, took in self.took.items():
            middle = sorted(took)[len(took) // 2]
            parts.append(f"{how} x{len(took)}: all partitions acked after {middle:.2f} s median, {max(took):.2f} s worst")
        return "; ".join(parts) + f"; {self._brokers.revived} living brokers were replaced"


def s3_doors(network: Network, server: S3Server, prefix: str) -> Callable[[int], str]:
    """The store's URL of each broker: one prefix of one bucket, reached through the network."""
    bucket = server.bucket()
    return lambda number: f"s3://{bucket}/{prefix}?endpoint=http://{HOST}:{network.door('store', server.port, str(number))}"
