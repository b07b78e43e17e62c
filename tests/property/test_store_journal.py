"""Many writers of one journal, on a store that fails: one seed chooses the order of actors, the faults, and the snapshots.

Runs: actors append, settle doubtful appends, lose races, load again, make snapshots, and sleep. Compared, with the final
history:

- an append stands for ever at the version that it returned, and no version belongs to two writers
- every load, by any actor at any time, is a prefix of the final history
- the history has no hole

A mismatch means that two brokers can believe that they own the manifest. The last test removes the journal's own precaution and
requires that the checks notice: a checker that cannot fail proves nothing.
"""

from __future__ import annotations

import asyncio
import json
from random import Random

import pytest

from headgate.broker.runtime.errors import RetryError
from headgate.broker.store.journal import Journal, Loaded, LostRaceError
from headgate.broker.store.memory import MemoryObjects, MemoryStore
from headgate.broker.testing.faults import Fault, FaultStore

PREFIX = "j"
RATES = {Fault.REFUSED: 0.04, Fault.AMBIGUOUS: 0.06, Fault.LATE: 0.04, Fault.DELAYED: 0.15, Fault.TRUNCATED: 0.03}


def history(loaded: Loaded) -> list[str]:
    """The state of this journal is the list of all appended data."""
    state: list[str] = [] if loaded.snapshot is None else json.loads(loaded.snapshot)
    return state + [edit.decode() for edit in loaded.edits]


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.objects = MemoryObjects()
        self.claims: dict[int, str] = {}
        """By version: the append that returned it."""
        self.seen: list[list[str]] = []
        """Every history that an actor loaded."""
        self.races = 0

    async def sleep(self, seconds: float) -> None:
        """Let the others run for a while: mostly a few turns, sometimes so long that others make snapshots beyond the sleeper's
        version."""
        for _ in range(self.random.choice([1, 2, 5, 20, 300])):
            await asyncio.sleep(0)

    async def act(self, name: str, steps: int) -> None:
        faults = FaultStore(MemoryStore(self.objects), sleep=self.sleep, random=self.random, rates=RATES)
        journal = Journal(faults, PREFIX, writer=name)
        state: list[str] | None = None
        data = ""
        for step in range(steps):
            try:
                if state is None:
                    state = history(await journal.load())
                    self.seen.append(list(state))
                    assert len(state) == journal.version
                if journal.in_doubt is None:
                    # Half of all appends have the same data: the journal must still know the writer of each.
                    data = f"{name} {step}" if self.random.random() < 0.5 else "same"
                version = await journal.append(data.encode())
                assert version == len(state) + 1
                state.append(data)
                owner = f"{name} at step {step}: {data}"
                assert version not in self.claims, f"version {version} belongs to {self.claims[version]} and to {owner}"
                self.claims[version] = owner
                if self.random.random() < 0.3:
                    await journal.snapshot(json.dumps(state).encode())
            except LostRaceError:
                self.races += 1
                state = None
            except RetryError:
                if self.random.random() < 0.2:
                    state = None  # loads again instead of settling the doubtful append
            if self.random.random() < 0.1:
                await self.sleep(0)
        await faults.land()

    async def run(self) -> None:
        await asyncio.gather(*(self.act(f"writer-{number}", 40) for number in range(4)))
        final = history(await Journal(MemoryStore(self.objects), PREFIX).load())
        for version, owner in self.claims.items():
            assert final[version - 1] == owner.partition(": ")[2], f"version {version} of {owner} is {final[version - 1]}"
        for state in self.seen:
            assert final[: len(state)] == state
        assert len(self.claims) <= len(final)


@pytest.mark.parametrize("seed", range(60))
async def test_writers_on_a_failing_store(seed: int) -> None:
    await World(seed).run()


async def test_the_worlds_have_what_they_are_for() -> None:
    """Races are lost, versions won, snapshots made: otherwise the test above proves nothing."""
    world = World(0)
    await world.run()
    snapshots = await MemoryStore(world.objects).list(f"{PREFIX}/snapshot/")
    assert world.races > 5 and len(world.claims) > 20 and int(snapshots[0].key[-20:]) > 10


async def test_the_checks_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(self: Journal, version: int) -> bool:
        return False

    monkeypatch.setattr(Journal, "_is_forgotten", never)
    failures = 0
    for seed in range(60):
        try:
            await World(seed).run()
        except Exception:  # noqa: BLE001, any error shows that the defect was noticed
            failures += 1
    assert failures > 0


async def test_a_seed_repeats_a_world() -> None:
    first, second = World(7), World(7)
    await first.run()
    await second.run()
    assert first.claims == second.claims and first.seen == second.seen
