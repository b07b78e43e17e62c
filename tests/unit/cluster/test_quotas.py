"""Quotas: which one a client has, what an edit may say, the meters of a broker, and how the leader divides.

Compared: Kafka's order of precedence as a table; the time that a client must wait; the sum of the shares for any use. A mismatch
means that a client may use more than its quota, waits without a reason, or that a wrong quota is stored.
"""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.broker.cluster.edits.quotas import AlterQuotas
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.manifest_format import decode_edits, decode_snapshot, encode_edits, encode_snapshot
from headgate.broker.cluster.meters import BURST_S, Meters, Use
from headgate.broker.cluster.quota_shares import QuotaBook, divide
from headgate.broker.cluster.quotas import ENTITIES_MAX, Entity, Kind, QuotaRow, Quotas, entity_of
from headgate.broker.runtime.errors import InvalidError

LEVELS = [
    Entity(user="alice", client_id="etl"),
    Entity(user="alice", client_id=""),
    Entity(user="alice"),
    Entity(user="", client_id="etl"),
    Entity(user="", client_id=""),
    Entity(user=""),
    Entity(client_id="etl"),
    Entity(client_id=""),
]
"""Kafka's order: the first one with a quota decides."""
SHARED = [
    Entity(user="alice", client_id="etl"),
    Entity(user="alice", client_id="etl"),
    Entity(user="alice"),
    Entity(user="alice", client_id="etl"),
    Entity(user="alice", client_id="etl"),
    Entity(user="alice"),
    Entity(client_id="etl"),
    Entity(client_id="etl"),
]


def _set(quotas: Quotas, entity: Entity, **values: float | None) -> None:
    quotas.check(entity, values)
    quotas.alter(entity, values)


def test_the_most_specific_entity_with_a_quota_decides() -> None:
    quotas = Quotas()
    for number, level in enumerate(LEVELS):
        _set(quotas, level, producer_byte_rate=number + 1)
    for number, level in enumerate(LEVELS):
        assert quotas.of(Kind.PRODUCE, "alice", "etl") == (SHARED[number], number + 1)
        _set(quotas, level, producer_byte_rate=None)
    assert quotas.of(Kind.PRODUCE, "alice", "etl") is None and not quotas.by_entity


def test_an_entity_without_a_quota_of_a_kind_does_not_decide_about_that_kind() -> None:
    quotas = Quotas()
    _set(quotas, Entity(user="alice"), consumer_byte_rate=5)
    _set(quotas, Entity(client_id=""), producer_byte_rate=7)
    assert quotas.of(Kind.PRODUCE, "alice", "etl") == (Entity(client_id="etl"), 7)
    assert quotas.of(Kind.FETCH, "alice", "etl") == (Entity(user="alice"), 5)


@pytest.mark.parametrize(
    ("parts", "values"),
    [
        ([], {"producer_byte_rate": 1}),
        ([("ip", "10.0.0.1")], {"connection_creation_rate": 1}),
        ([("user", "a"), ("user", "b")], {"producer_byte_rate": 1}),
        ([("group", "a")], {"producer_byte_rate": 1}),
        ([("user", "")], {"producer_byte_rate": 1}),
        ([("user", "x" * 251)], {"producer_byte_rate": 1}),
        ([("user", "a")], {"request_percentage": 1}),
        ([("user", "a")], {"unknown": 1}),
        ([("user", "a")], {"producer_byte_rate": 0}),
        ([("user", "a")], {"producer_byte_rate": -1}),
        ([("user", "a")], {"producer_byte_rate": 1.5}),
        ([("user", "a")], {"producer_byte_rate": math.nan}),
        ([("user", "a")], {"producer_byte_rate": math.inf}),
    ],
)
def test_a_wrong_quota_is_refused(parts: list[tuple[str, str | None]], values: dict[str, float | None]) -> None:
    with pytest.raises(InvalidError):
        Quotas().check(entity_of(parts), values)


def test_the_number_of_entities_is_bounded() -> None:
    quotas = Quotas()
    for number in range(ENTITIES_MAX):
        quotas.alter(Entity(user=f"u{number}"), {"producer_byte_rate": 1})
    with pytest.raises(InvalidError, match="too many"):
        quotas.check(Entity(user="one more"), {"producer_byte_rate": 1})
    quotas.check(Entity(user="u1"), {"producer_byte_rate": 2})


def test_quotas_are_part_of_the_manifest() -> None:
    manifest = Manifest()
    edit = AlterQuotas(Entity(user="alice", client_id=""), {"producer_byte_rate": 1024.0, "consumer_byte_rate": 12.0})
    manifest.apply(decode_edits(encode_edits([edit])))
    again = decode_snapshot(encode_snapshot(manifest))
    assert again.quotas.by_entity == manifest.quotas.by_entity == {edit.entity: {Kind.PRODUCE: 1024.0, Kind.FETCH: 12.0}}


def test_kinds_of_earlier_builds_are_skipped() -> None:
    """Shares of processor time, and connections of addresses, which stand in journals and snapshots of stores."""
    rows = (
        '{"entity":{"user":"alice"},"values":{"request_percentage":12.5,"producer_byte_rate":5.0}}',
        '{"entity":{"user":"bob"},"values":{"request_percentage":12.5}}',
        '{"entity":{"ip":""},"values":{"connection_creation_rate":9.0}}',
    )
    quotas = Quotas(msgspec.json.decode(f"[{','.join(rows)}]", type=list[QuotaRow]))
    quotas.alter(Entity(user="alice"), {"request_percentage": 9.0})
    assert quotas.by_entity == {Entity(user="alice"): {Kind.PRODUCE: 5.0}}


class World:
    """The meters of one broker of several, with a clock."""

    def __init__(self, brokers: int = 1) -> None:
        self.now_s = 100.0
        self.quotas = Quotas()
        self.brokers = brokers
        self.meters = Meters(lambda: self.quotas, lambda: self.now_s, lambda: self.brokers)

    def set(self, entity: Entity, **values: float | None) -> None:
        _set(self.quotas, entity, **values)
        self.meters.changed()


def test_a_client_waits_until_its_use_is_within_its_quota() -> None:
    world = World()
    world.set(Entity(user="alice"), producer_byte_rate=1000)
    one, other = world.meters.client("alice", "a"), world.meters.client("alice", "b")
    assert one is not None and other is not None and one.produce is not None and one.fetch is None
    assert one.produce is other.produce, "clients of a user share its quota"
    assert world.meters.client("bob", "a") is None
    assert one.produce.take(1000 * BURST_S, world.now_s) == 0
    assert one.produce.take(3000, world.now_s) == 3.0
    assert world.meters.throttled() == [(Entity(user="alice"), Kind.PRODUCE)]
    world.now_s += 2
    assert one.produce.wait_s(world.now_s) == 1.0
    world.now_s += 100
    assert one.produce.wait_s(world.now_s) == 0 and one.produce.room(world.now_s) == 1000 * BURST_S
    assert not world.meters.throttled()
    assert world.meters.waited_s()[Kind.PRODUCE] == 3.0


def test_a_changed_quota_counts_at_once_and_what_was_used_stays() -> None:
    world = World()
    world.set(Entity(user="alice"), producer_byte_rate=1000)
    client = world.meters.client("alice", "a")
    assert client is not None and client.produce is not None
    client.produce.take(5000, world.now_s)
    world.set(Entity(user="alice"), producer_byte_rate=4000)
    again = world.meters.client("alice", "a")
    assert again is not None and again.produce is client.produce
    assert client.produce.wait_s(world.now_s) == 1.0
    world.set(Entity(user="alice"), producer_byte_rate=None)
    assert world.meters.client("alice", "a") is None and not world.meters.is_on
    assert world.meters.waited_s()[Kind.PRODUCE] > 0, "a counter never falls"


def test_until_the_leader_has_divided_each_broker_has_an_equal_share() -> None:
    world = World(brokers=4)
    world.set(Entity(user="alice"), producer_byte_rate=4000)
    client = world.meters.client("alice", "a")
    assert client is not None and client.produce is not None
    assert client.produce.share == 1000
    world.meters.divided([(Entity(user="alice"), Kind.PRODUCE, 3500.0)])
    assert client.produce.share == 3500
    world.meters.divided([])
    assert client.produce.share == 1000


def test_a_report_has_the_rate_since_the_last_one() -> None:
    world = World()
    world.set(Entity(user="alice"), producer_byte_rate=1000)
    client = world.meters.client("alice", "a")
    assert client is not None and client.produce is not None
    client.produce.take(500, world.now_s)
    world.now_s += 2
    (use,) = world.meters.report()
    assert (use.rate, use.is_throttled, use.limit) == (250.0, False, 1000)
    assert world.meters.report() == []


@given(
    limit=st.floats(1e-3, 1e12),
    wants=st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1e13), min_size=1),
)
def test_shares_sum_up_to_the_quota_whatever_brokers_want(limit: float, wants: dict[str, float]) -> None:
    wants = {one: min(want, limit) for one, want in wants.items()}
    shares = divide(limit, wants)
    assert shares.keys() == wants.keys() and all(share > 0 for share in shares.values())
    assert sum(shares.values()) == pytest.approx(limit)
    most = max(shares.values())
    for one, share in shares.items():
        assert share >= wants[one] * (1 - 1e-6) or share == pytest.approx(most), "a broker lacks what another one has too much of"


def _use(rate: float, *, throttled: bool) -> Use:
    return Use(Entity(user="alice"), Kind.PRODUCE, 1000, 500, rate, throttled, 0)


def test_a_broker_whose_clients_wait_gets_what_others_leave() -> None:
    book, key = QuotaBook(), (Entity(user="alice"), Kind.PRODUCE)
    book.note("a", [_use(500, throttled=True)])
    book.note("b", [_use(100, throttled=False)])
    first = book.divide(["a", "b"])
    assert first["a"][key] == pytest.approx(850) and first["b"][key] == pytest.approx(150)
    assert book.divide(["a", "b"]) == {}, "nothing has changed"
    book.note("b", [_use(150, throttled=True)])
    assert book.divide(["a", "b"])["b"][key] == pytest.approx(500)
    assert book.divide(["a"])["a"][key] == pytest.approx(1000), "the other broker is gone"
