"""The lease: the register in a store, and the permissions of a contender.

Compared: the permissions of `Contender` with the rule in DESIGN's words, over random lives of a lease; the register after writes
of several writers, some of which sleep for long. A mismatch means two leaders at once, or none where there should be one.
"""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.broker.cluster.lease import YIELD_AGAIN_S, YIELD_TIMEOUTS, Contender, Lease
from headgate.broker.control.lease_register import LeaseRegister
from headgate.broker.engine.base import keys
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.errors import CorruptError, FatalError, Reason, RetryError
from headgate.broker.store.memory import MemoryObjects, MemoryStore
from tests.unit.control.conftest import MakeWorld
from tests.unit.engine.world import MortalStore

TTL_MS = 3000


def lease(holder: str = "a", address: str = "h:1", *, serving: bool = True, renewal: int = 0) -> Lease:
    return Lease(holder=holder, broker_id=1, address=address, ttl_ms=TTL_MS, serving=serving, renewal=renewal)


looks = st.lists(
    st.tuples(
        st.sampled_from(["same", "renewed", "blind"]),
        st.floats(0.01, 2.0),
        st.booleans(),
    ),
    max_size=30,
)


@given(looks, st.booleans())
def test_a_contender_takes_what_was_not_renewed_for_a_whole_ttl(steps: list[tuple[str, float, bool]], serving: bool) -> None:
    """A contender may also take the lease if the holder had served and its address now refuses connections. Nothing else allows
    it."""
    contender = Contender("me:1")
    now_s, version, since_s = 100.0, 1, 100.0
    assert not contender.may_take(version, lease(serving=serving), now_s)
    for what, pause_s, refused in steps:
        now_s += pause_s
        if what == "blind":
            contender.blind()
            since_s = float("inf")  # the waiting begins at the next look
            continue
        if what == "renewed":
            version += 1
        if what == "renewed" or since_s == float("inf"):
            since_s = now_s
        expected = (now_s - since_s) * 1000 >= TTL_MS or (refused and serving)
        assert contender.may_take(version, lease(serving=serving, renewal=version), now_s, refused=refused) == expected


def test_where_looks_take_long_the_holder_has_longer() -> None:
    """A store that takes a second to answer delays renewals too: that alone is no loss."""
    contender = Contender("me:1")
    for _ in range(20):
        contender.looked(1.0)
    assert not contender.may_take(1, lease(), 100.0)
    assert not contender.may_take(1, lease(), 100.0 + TTL_MS / 1000 + 1.9)
    assert contender.may_take(1, lease(), 100.0 + TTL_MS / 1000 + 2.0)
    for _ in range(20):
        contender.looked(0.0)
    assert contender.may_take(1, lease(), 100.0 + TTL_MS / 1000 + 0.01), "that is forgotten when the store is quick again"


def test_what_may_be_taken_at_once() -> None:
    contender = Contender("me:1")
    assert contender.may_take(0, None, 0.0)
    assert contender.may_take(5, lease(holder=""), 0.0), "it was given back"
    assert contender.may_take(6, lease(address="me:1"), 0.0), "whoever was at this address is gone"
    assert not contender.may_take(7, lease(), 0.0)


def test_a_broker_that_gave_the_lease_back_leaves_it_to_others_for_a_while() -> None:
    contender = Contender("me:1")
    assert not contender.stands_back(None, 0.0) and contender.may_yield(0.0), "the first time"
    contender.yielded(100.0, 2.0)
    after_s = 100.0 + YIELD_TIMEOUTS * 2.0
    assert contender.stands_back(None, 100.0) and contender.stands_back(lease(holder=""), after_s - 0.1)
    assert not contender.stands_back(lease(), 100.0), "another broker leads: this one follows it at once"
    assert not contender.stands_back(None, after_s), "no other broker took it"
    assert not contender.may_yield(after_s) and not contender.may_yield(after_s + YIELD_AGAIN_S - 0.1)
    assert contender.may_yield(after_s + YIELD_AGAIN_S)


def test_a_broker_that_followed_another_leader_may_give_the_lease_back_again() -> None:
    contender = Contender("me:1")
    contender.yielded(100.0, 2.0)
    contender.followed()
    assert not contender.stands_back(None, 100.0) and contender.may_yield(100.0)


async def test_a_lease_that_cannot_be_read() -> None:
    (one,), (store,) = registers(1)
    key = f"{keys.LEASE}{1:020d}"
    await store.put(key, b"{")
    version, found = await one.read()
    assert found is not None
    contender = Contender("me:1")
    assert not contender.may_take(version, found, 0.0), "somebody may hold it"
    assert contender.may_take(version, found, found.ttl_ms / 1000), "nobody does"
    assert await one.write(2, lease("a"))
    assert await one.read() == (2, lease("a"))


@pytest.mark.parametrize("data", [b"", b"{", b"\0" * 200, b'{"format": 1}', b"[]"])
def test_damage(data: bytes) -> None:
    with pytest.raises(CorruptError, match="lease cannot be read"):
        Lease.decode(data)


def test_what_a_newer_version_wrote_is_not_damaged() -> None:
    assert Lease.decode(lease().encode()) == lease()
    with pytest.raises(FatalError, match="upgrade this broker"):
        Lease.decode(b'{"format": 2, "leader": "somebody"}')


def registers(count: int) -> tuple[list[LeaseRegister], list[MortalStore]]:
    objects = MemoryObjects()
    stores = [MortalStore(MemoryStore(objects), "memory:") for _ in range(count)]
    return [LeaseRegister(store, Clock()) for store in stores], stores


async def test_one_of_two_wins_a_version() -> None:
    (one, other), (store, _) = registers(2)
    assert await one.read() == (0, None)
    assert await one.write(1, lease("a"))
    assert not await other.write(1, lease("b"))
    assert await other.read() == (1, lease("a"))
    assert await other.write(2, lease("b"))
    assert not await one.write(2, lease("a"))
    assert [row.key[-1] for row in await store.list(keys.LEASE, "", 10)] == ["2"], "old versions go"


async def test_a_writer_that_slept_does_not_win_a_version_that_was_deleted() -> None:
    """Put-if-absent succeeds if the object was deleted; a newer version above it shows that the write lost."""
    (one, other), (store, _) = registers(2)
    assert await one.write(1, lease("a"))
    assert await other.write(2, lease("b"))
    assert await other.write(3, lease("b", renewal=1))
    assert not await one.write(2, lease("a", renewal=1))
    assert await one.read() == (3, lease("b", renewal=1))
    assert [row.key[-1] for row in await store.list(keys.LEASE, "", 10)] == ["3"]


async def test_a_store_that_does_not_answer() -> None:
    """An unknown outcome is an error of its own; the next read shows if the attempt succeeded."""
    (one, other), (store, _) = registers(2)
    store.refused["list"] = RetryError(Reason.STORE_UNAVAILABLE, "no answer")
    with pytest.raises(RetryError):
        await one.write(1, lease("a"))
    store.refused.clear()
    assert await one.read() == (1, lease("a")) == await other.read()
    assert not await one.write(1, lease("a"))


async def test_what_somebody_else_has_put_beside_the_lease() -> None:
    (one, other), (store, _) = registers(2)
    for name in ("hello", "7", "copy/00000000000000000009"):
        await store.put(f"{keys.LEASE}{name}", b"")
    assert await one.read() == (0, None)
    assert await one.write(1, lease("a"))
    assert await other.write(2, lease("b"))
    assert await one.read() == (2, lease("b"))
    assert len(await store.list(keys.LEASE, "", 10)) == 4


async def test_a_leader_knows_a_renewal_that_it_broke_off(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled call to S3 continues in its thread: the leader then finds a version that it does not know. It leads on."""
    world = await make_world(1, cluster_lease_ttl_ms=600_000)
    term = world.leader.term
    write = LeaseRegister.write

    async def answer_is_lost(self: LeaseRegister, version: int, lease: Lease) -> bool:
        assert await write(self, version, lease)
        monkeypatch.undo()
        raise asyncio.CancelledError

    monkeypatch.setattr(LeaseRegister, "write", answer_is_lost)
    with pytest.raises(asyncio.CancelledError):
        await term.lease.write()
    before = term.lease.current
    await term.lease.write(serving=True)
    assert term is world.leader.participant.leader, "the term goes on"
    assert term.lease.current.renewal == before.renewal + 2
    _, found = await LeaseRegister(MemoryStore(world.objects), Clock()).read()
    assert found == term.lease.current and found.serving
