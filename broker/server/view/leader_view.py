"""The leader's part of the page: loads, rates, floods, gates, capacity and decisions. Made in slices of the loop's time, and only
while a page is open somewhere."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from headgate.broker.cluster.liveness import is_starved
from headgate.broker.cluster.objects import Incarnation
from headgate.broker.cluster.segments import BrokerLoad, SegmentInfo
from headgate.broker.control.leader import Leader
from headgate.broker.control.load import trouble_of
from headgate.broker.engine.engine import Engine
from headgate.broker.runtime.errors import RetryError
from headgate.broker.runtime.turns import Turn
from headgate.broker.server.view import model
from headgate.broker.server.view.gate_files import GateFiles
from headgate.broker.server.view.parts import Counts, choose_gates, gate_row, led, plain_broker, plain_segment, topic_row


class LeaderViews:
    """Makes the views while this broker leads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._files = GateFiles(engine.store, engine.clock)

    async def make(self, leader: Leader, topics: Sequence[str]) -> model.LeaderView:
        """The view, with these topics, or the busiest ones."""
        turn = self._engine.turns.begin()
        names = list(topics[: model.TOPICS_MAX]) or await self._busiest(leader, turn)
        return model.LeaderView(
            leader_broker_id=self._engine.broker_id,
            version=leader.journal.version,
            brokers=await self._brokers(leader, turn),
            topics=await self._topics(leader, names, turn),
            floods=_floods(leader),
            gates=await self._gates(leader, turn),
            capacity=_capacity(leader),
            decisions=_decisions(leader),
        )

    async def close(self) -> None:
        await self._files.close()

    async def _busiest(self, leader: Leader, turn: Turn) -> list[str]:
        costs = await turn.run(leader.term.planner.history.busiest())
        known = leader.manifest.topics_by_id
        ordered = sorted(costs, key=lambda topic_id: -costs[topic_id])
        return [known[topic_id].name for topic_id in ordered if topic_id in known][: model.TOPICS_MAX]

    async def _topics(self, leader: Leader, names: Sequence[str], turn: Turn) -> list[model.Topic]:
        manifest, planner = leader.manifest, leader.term.planner

        def row(segment: SegmentInfo) -> model.Segment:
            load = planner.load(segment.id)
            age_ms = planner.history.age_ms(segment.id)
            return replace(
                plain_segment(manifest, segment),
                bytes_in_per_s=round(load.bytes_in_per_s),
                bytes_out_per_s=round(load.bytes_out_per_s),
                requests_per_s=round(load.requests_per_s, 1),
                age_s=None if age_ms is None else age_ms / 1000,
            )

        found: list[model.Topic] = []
        async for name in turn.each(names):
            topic = manifest.topics.get(name)
            if topic is not None:
                found.append(topic_row(manifest, topic, row))
        return found

    async def _brokers(self, leader: Leader, turn: Turn) -> list[model.Broker]:
        counts, _ = await led(leader.manifest, turn)
        loads = {load.incarnation_id: load for load in (*leader.term.loads(), *leader.term.lane_loads())}
        live = sorted(
            (incarnation for incarnation in leader.manifest.incarnations.values() if not incarnation.sealed),
            key=lambda incarnation: incarnation.broker_id,
        )
        return [
            await self._broker(leader, incarnation, counts.get(incarnation.id, Counts()), loads.get(incarnation.id), turn)
            for incarnation in live[: model.BROKERS_MAX]
        ]

    async def _broker(
        self, leader: Leader, broker: Incarnation, counts: Counts, load: BrokerLoad | None, turn: Turn
    ) -> model.Broker:
        now_s = leader.clock.monotonic()
        mine = broker.id == self._engine.incarnation_id
        trouble = trouble_of(self._engine) if mine else leader.term.trouble_of(broker.id)
        late_s, _ = leader.term.lateness_of(broker.id, now_s)
        bytes_in = bytes_out = 0.0
        async for segment in turn.each([] if load is None else load.segments):
            bytes_in += segment.bytes_in_per_s
            bytes_out += segment.bytes_out_per_s
        follower = leader.manifest.followers.get(broker.id)
        copied = None if follower is None else leader.manifest.incarnations.get(follower.incarnation_id)
        state = _state(trouble, load, counts, late_s)
        state = "lane" if broker.is_lane and state == "serves" else state
        plain = plain_broker(broker, counts, leader.clock.now_ms(), leads_cluster=mine, state=state)
        plain = replace(plain, late_s=round(late_s, 3), copied_to=None if copied is None else copied.broker_id)
        if load is None:
            return plain
        return replace(
            plain,
            cpu_share=round(load.cpu_share, 3),
            memory_bytes=load.memory_bytes,
            connections=load.connections,
            bytes_in_per_s=round(bytes_in),
            bytes_out_per_s=round(bytes_out),
        )

    async def _gates(self, leader: Leader, turn: Turn) -> list[model.Gate]:
        manifest, now_ms = leader.manifest, leader.clock.now_ms()
        gates = choose_gates(manifest, leader.gates.open_gates())
        uploaded = self._files.known(gates)
        return [
            gate_row(manifest, gate, now_ms, leader.gates.expires_in_ms(gate), uploaded.get((gate.topic_id, gate.id)))
            async for gate in turn.each(gates)
        ]


def _state(trouble: str, load: BrokerLoad | None, counts: Counts, late_s: float) -> str:
    if trouble:
        return trouble
    if load is None:
        return "silent"
    if load.draining:
        return "drains" if counts.segments else "drained"
    return "starved" if is_starved(late_s) else "serves"


def _floods(leader: Leader) -> list[model.Flood]:
    now_s = leader.clock.monotonic()
    return [
        model.Flood(
            topic=flood.report.topic,
            id=flood.report.flood_id,
            phase=flood.report.phase,
            rows_planned=flood.report.rows_planned,
            rows_moved=flood.report.rows_moved,
            rows_written=flood.report.rows_written,
            rows_verified=flood.report.rows_verified,
            rows_per_s=round(flood.rows_per_s),
            left_s=None if flood.left_s is None else round(flood.left_s, 1),
            age_s=round((now_s if flood.ended_s is None else flood.ended_s) - flood.began_s, 1),
            silent_s=round(now_s - flood.reported_s, 1),
            ended=flood.ended_s is not None,
            message=flood.report.message,
        )
        for flood in leader.floods.floods()[: model.FLOODS_MAX]
    ]


def _capacity(leader: Leader) -> model.Capacity:
    now_s = leader.clock.monotonic()
    try:
        desired = leader.capacity.desired()
        number: int | None = desired.brokers
        reasons = list(desired.reasons[: model.RESERVATIONS_MAX])
    except RetryError as error:
        number, reasons = None, [error.message]
    reservations = leader.capacity.reservations()
    return model.Capacity(
        desired=number,
        live=leader.capacity.live_brokers(),
        reasons=reasons,
        reservations_total=len(reservations),
        reservations=[
            model.Reservation(
                id=reservation.reservation.id,
                owner=reservation.reservation.owner,
                brokers=reservation.reservation.brokers,
                left_s=reservation.left_ms / 1000,
            )
            for reservation in reservations[: model.RESERVATIONS_MAX]
        ],
        samples=[
            model.Sample(
                ago_s=round(now_s - sample.at_s),
                desired=sample.desired,
                live=sample.live,
                bytes_in_per_s=round(sample.bytes_in_per_s),
                bytes_out_per_s=round(sample.bytes_out_per_s),
            )
            for sample in leader.chronicle.samples
        ],
    )


def _decisions(leader: Leader) -> list[model.Decision]:
    """The newest orders and events, the newest first."""
    now_s = leader.clock.monotonic()
    found = [
        (
            decision.at_s,
            model.Decision(
                age_s=round(now_s - decision.at_s, 1),
                kind=decision.order.kind.value,
                why=decision.order.why,
                topics=list(decision.topics[:5]),
                under_way=decision.under_way,
                error="" if decision.error is None else decision.error.message,
                pause_ms=round(decision.pause_s * 1000) or None,
            ),
        )
        for decision in leader.term.orders.decisions
    ]
    found += [
        (
            event.at_s,
            model.Decision(
                age_s=round(now_s - event.at_s, 1), kind=event.kind, why=event.why, topics=[event.topic] if event.topic else []
            ),
        )
        for event in leader.chronicle.events
    ]
    found.sort(key=lambda pair: -pair[0])
    return [decision for _, decision in found[: model.DECISIONS_MAX]]
