"""Members and commits of consumer groups, in a process of its own. Prints one JSON object::

python -m tests.bench.group_client commits PORT TOPIC PARTITIONS CONNECTIONS SECONDS
python -m tests.bench.group_client rebalance PORT MEMBERS ROUNDS
python -m tests.bench.group_client members PORT GROUPS SIZE SECONDS
python -m tests.bench.group_client consumers PORT TOPIC PARTITIONS MEMBERS ROUNDS
python -m tests.bench.group_client consumer_groups PORT TOPIC GROUPS SIZE SECONDS
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import uvloop

from tests.support.consumer_load import ConsumerMember, are_settled
from tests.support.group_load import Member, commit_body, commit_errors, connect, settled_groups

OFFSET_COMMIT, COMMIT_VERSION = 8, 7
HEARTBEAT_S = 1.0


async def commits(port: str, topic: str, partitions: str, connections: str, seconds: str) -> dict[str, Any]:
    """Each connection commits all partitions of its own group, again and again, one request after the other."""
    latencies: list[float] = []
    stop_at = time.perf_counter() + float(seconds)

    async def one(number: int) -> None:
        connection = await connect(int(port))
        offset = 0
        while (began := time.perf_counter()) < stop_at:
            offset += 1
            body = commit_body(f"commit-{number}", topic, int(partitions), offset)
            answer = await connection.send(OFFSET_COMMIT, COMMIT_VERSION, False, body)
            latencies.append(time.perf_counter() - began)
            if commit_errors(answer) != {0}:
                raise SystemExit(f"a commit was refused. errors=`{commit_errors(answer)}`")
        connection.close()

    began = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(int(connections))))
    took_s = time.perf_counter() - began
    latencies.sort()
    return {
        "requests": len(latencies),
        "requests_per_s": len(latencies) / took_s,
        "positions_per_s": len(latencies) * int(partitions) / took_s,
        "p50_ms": latencies[len(latencies) // 2] * 1e3,
        "p99_ms": latencies[int(len(latencies) * 0.99)] * 1e3,
    }


async def rebalance(port: str, members: str, rounds: str) -> dict[str, Any]:
    """Seconds from the last join of a new group's members until each has its assignment."""
    took: list[float] = []
    for number in range(int(rounds)):
        made = [Member(int(port), f"rebalance-{number}") for _ in range(int(members))]
        stop = asyncio.Event()

        async def live(member: Member, stop: asyncio.Event = stop) -> None:
            await member.join()
            await member.beat(0.1, stop)

        tasks = [asyncio.create_task(live(member)) for member in made]
        while not all(member.synced_at_s for member in made):  # noqa: ASYNC110  # fifty of them, each with its own moment
            await asyncio.sleep(0.01)
        took.append(max(member.synced_at_s for member in made) - max(member.joined_at_s for member in made))
        stop.set()
        await asyncio.gather(*tasks)
        for member in made:
            member.close()
    took.sort()
    return {"seconds": took[len(took) // 2], "seconds_max": took[-1]}


async def members(port: str, groups: str, size: str, seconds: str) -> dict[str, Any]:
    """Heartbeats of many groups for some seconds; counts expelled members."""
    made = await settled_groups(int(port), int(groups), int(size))
    for member in made:
        member.beats, member.beat_s_max, member.generations = 0, 0.0, []
    stop = asyncio.Event()
    tasks = [asyncio.create_task(member.beat(HEARTBEAT_S, stop)) for member in made]
    await asyncio.sleep(float(seconds))
    stop.set()
    await asyncio.gather(*tasks)
    return {
        "members": len(made),
        "beats": sum(member.beats for member in made),
        "expelled": sum(bool(member.errors) for member in made),
        "rebalances": sum(len(member.generations) for member in made),
        "beat_ms_max": max(member.beat_s_max for member in made) * 1e3,
    }


async def consumers(port: str, topic: str, partitions: str, members: str, rounds: str) -> dict[str, Any]:
    """Seconds from the last join of a new KIP-848 group's members until all partitions are owned and all have the last epoch. Then
    one member leaves, and the others settle again."""
    joins: list[float] = []
    leaves: list[float] = []
    for number in range(int(rounds)):
        made = [ConsumerMember(int(port), f"consumers-{number}", topic) for _ in range(int(members))]
        stop = asyncio.Event()
        await asyncio.gather(*(one.join() for one in made))
        began = time.perf_counter()
        tasks = [asyncio.create_task(one.live(stop)) for one in made]
        await _settled(made, int(partitions))
        joins.append(time.perf_counter() - began)
        gone = made.pop()
        tasks.pop().cancel()
        gone.epoch = -1
        await gone.beat()
        began = time.perf_counter()
        await _settled(made, int(partitions))
        leaves.append(time.perf_counter() - began)
        stop.set()
        await asyncio.gather(*tasks)
        for one in (*made, gone):
            one.close()
    return {"join_s": sorted(joins)[len(joins) // 2], "join_s_max": max(joins), "leave_s_max": max(leaves)}


async def _settled(made: list[ConsumerMember], partitions: int) -> None:
    while not are_settled(made, partitions):  # some hundred of them, each with its own moment
        if any(one.errors for one in made):
            raise SystemExit(f"a heartbeat was refused. errors=`{sorted({code for one in made for code in one.errors})}`")
        await asyncio.sleep(0.01)


async def consumer_groups(port: str, topic: str, groups: str, size: str, seconds: str) -> dict[str, Any]:
    """Heartbeats of many KIP-848 groups for some seconds, once all have settled."""
    made = [ConsumerMember(int(port), f"many-{number}", topic) for number in range(int(groups)) for _ in range(int(size))]
    stop = asyncio.Event()
    began = time.perf_counter()
    for first in range(0, len(made), 100):
        await asyncio.gather(*(one.join() for one in made[first : first + 100]))
    tasks = [asyncio.create_task(one.live(stop)) for one in made]
    while any(time.perf_counter() - one.changed_at_s < 1.0 for one in made):  # noqa: ASYNC110  # thousands of them
        await asyncio.sleep(0.05)
    settled_s = max(one.changed_at_s for one in made) - began
    for one in made:
        one.beats = 0
    await asyncio.sleep(float(seconds))
    beats = sum(one.beats for one in made)
    stop.set()
    await asyncio.gather(*tasks)
    return {
        "members": len(made),
        "settled_s": settled_s,
        "beats_per_s": beats / float(seconds),
        "expelled": sum(bool(one.errors) for one in made),
    }


OPERATIONS = {
    "commits": commits,
    "rebalance": rebalance,
    "members": members,
    "consumers": consumers,
    "consumer_groups": consumer_groups,
}


def main() -> None:
    operation = OPERATIONS[sys.argv[1]]
    sys.stdout.write(json.dumps(uvloop.run(operation(*sys.argv[2:]))) + "\n")


if __name__ == "__main__":
    main()
