"""Replays through a lane whose cache disk is full.

Runs: two brokers and a lane, which keeps nothing in memory, and whose `history_cache_dir` is on a file system smaller than the
history. Consumers of librdkafka, of kafka-python and of our own client read the topic from the beginning: while their own replay
fills the disk, and at a lane that was started on a disk without a free byte. Compared: what each consumer got with the topic, and
the space and the files of the disk afterwards. A mismatch means that a full disk costs a record or its order, ends the lane, sends
its readers to the leads, or stays full.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.conftest import BrokerFactory
from tests.e2e.test_lanes import HISTORY_OUT, PARTITIONS, judge, metric, with_lane
from tests.support.broker_process import HOST
from tests.support.native import NativeReader
from tests.support.small_disk import fill_disk, mounted
from tests.support.waiting import until
from tests.support.writers import ConfluentReader, KafkaPythonReader

pytestmark = [pytest.mark.needs_mount, pytest.mark.asyncio(loop_scope="session")]

MIB = 1 << 20
UNWRITTEN = "history_cache_unwritten"


async def test_a_full_cache_disk(make_broker: BrokerFactory, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", 12 * MIB) as disk:
        cache = disk / "cache"
        settings = {
            "HEADGATE_HISTORY_CACHE_DIR": str(cache),
            "HEADGATE_HISTORY_CACHE_DIR_BYTES": "1GiB",
            "HEADGATE_HISTORY_CACHE_BYTES": "0",
        }
        brokers, lane, log = await with_lane(make_broker, tmp_path / "store", settings)
        free = os.statvfs(disk).f_bfree
        least = sum(len(value) for rows in log.values() for _, value in rows)
        assert least > 3 * 12 * MIB

        def at_lane() -> bool:
            """Whether the lane serves two consumers that follow the lead there, beside kafka-python, which returns to the lead."""
            ours = ",".join(f"{HOST}:{one.grpc_port}" for one in brokers.all)
            kinds = {ConfluentReader: brokers.bootstrap, KafkaPythonReader: brokers.bootstrap, NativeReader: ours}
            readers = [kind(place, "t", PARTITIONS) for kind, place in kinds.items()]
            before = metric(lane, HISTORY_OUT)
            for reader in readers:
                reader.start()
            assert not judge(readers, log)
            return metric(lane, HISTORY_OUT) - before >= least / 2

        def replay() -> None:
            # Not at once on a busy machine: for a lane that is silent for two seconds, leads serve.
            until(at_lane, "the lane serves its readers")

        await asyncio.to_thread(replay)
        assert UNWRITTEN in lane.output(), "the disk was full"
        await asyncio.to_thread(until, lambda: os.statvfs(disk).f_bfree == free, "a full disk gets its space back")
        assert os.listdir(cache) == []
        await asyncio.to_thread(replay)

        ballast = fill_disk(disk)
        assert await asyncio.to_thread(lane.terminate) == 0
        lane.start()
        until(lambda: all(metric(one, "headgate_cluster_lanes") for one in brokers.all), "all brokers know the lane")
        told = lane.output().count(UNWRITTEN)
        await asyncio.to_thread(replay)
        assert lane.output().count(UNWRITTEN) > told
        ballast.unlink()
        lane.kill()
        await asyncio.to_thread(until, lambda: os.statvfs(disk).f_bfree == free, "the files end with the lane")
        assert os.listdir(cache) == []
