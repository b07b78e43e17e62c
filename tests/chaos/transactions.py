"""Transactions beside the faults: clients consume, transform and produce exactly once, while brokers fail."""

from __future__ import annotations

from tests.compat.topics import create_topic
from tests.support.cluster import Brokers
from tests.support.transactors import ABORTED, AiokafkaTransactor, ConfluentTransactor, Source, Transactor, committed
from tests.support.waiting import until

PARTITIONS = 3
RECORDS_PER_ROUND = 60


class Transactions:
    """Transactors of librdkafka and aiokafka, in a life of brokers."""

    def __init__(self, brokers: Brokers, seed: int, topic_config: dict[str, str]) -> None:
        self._brokers = brokers
        self._clients: list[Transactor] = [
            ConfluentTransactor(brokers.bootstrap, "source", "by-librdkafka", "librdkafka", seed),
            AiokafkaTransactor(brokers.bootstrap, "source", "by-aiokafka", "aiokafka", seed),
        ]
        for topic in ("source", *(one.target for one in self._clients)):
            create_topic(brokers.bootstrap, topic, PARTITIONS, **topic_config)
        self._source = Source(brokers.bootstrap, "source", PARTITIONS)
        for one in self._clients:
            one.start()

    def feed(self) -> None:
        """Give the transactors more records, without a wait for the acknowledgements."""
        self._source.produce(RECORDS_PER_ROUND)

    def judge(self) -> str:
        """Wait until all records have passed the transactors, and compare. Returns a description. Raises AssertionError."""
        self._source.flush()
        for one in self._clients:
            self._finish(one)
        self.stop()
        for one in self._clients:
            found = self._committed(one)
            assert not [value for values in found for value in values if value.startswith(ABORTED)], f"{one.name}: aborted records"
            counts = [(len(got), len(wanted)) for got, wanted in zip(found, self._source.written, strict=True)]
            assert found == self._source.written, f"transactions by {one.name} are not exact. (committed, wanted)=`{counts}`"
        return f"{' and '.join(f'{one.done} transactions by {one.name}' for one in self._clients)} are exact"

    def _committed(self, one: Transactor) -> list[list[bytes]]:
        return committed(self._brokers.bootstrap, one.target, PARTITIONS)

    def _finish(self, one: Transactor) -> None:
        """Wait as long as transactions go on: what must not take long is the next one."""

        def is_done() -> bool:
            assert not one.wrong, one.wrong
            return all(len(got) >= len(want) for got, want in zip(self._committed(one), self._source.written, strict=True))

        while not is_done():
            before = one.done
            until(
                lambda: one.done > before or is_done(),  # noqa: B023  # called before the loop goes on
                lambda: f"{one.name} goes on: {list(map(len, self._committed(one)))}, {one.restarts} restarts",
            )

    def stop(self) -> None:
        """End the transactors."""
        for one in self._clients:
            one.stop()
