"""The HTML of the page from every kind of model: hostile names, nothing at all, and the most that a model may have.

A mismatch means that a stranger's name becomes markup, that an empty cluster has no page, or that one event can be of any size.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace

from headgate.broker.log.records import Record
from headgate.broker.server.http.hands.entrance import Who
from headgate.broker.server.http.hands.messages import STARTS, Asked
from headgate.broker.server.http.hands.positions import TARGETS, Move
from headgate.broker.server.http.hands.reading import Messages, Window
from headgate.broker.server.http.hands.records import rows
from headgate.broker.server.http.page import drawing, text
from headgate.broker.server.http.page.hub import Query
from headgate.broker.server.http.page.render import SHARED, Renderer
from headgate.broker.server.view import model
from headgate.broker.wire.grpc.headgate.v1 import admin_pb2, capacity_pb2, gates_pb2, groups_pb2

HOSTILE = "<script>alert(1)</script>\"'&{{7*7}} onload=x javascript:x\u202e"
PART_BYTES_MAX = 256 << 10
"""Most bytes of one part, and so of one event."""

renderer = Renderer(has_hands=True)


class Tags(HTMLParser):
    """The elements and attributes of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


def broker(number: int = 1, name: str = "h", **changes: object) -> model.Broker:
    known = {"id": number, "host": name, "kafka_port": 1, "grpc_port": 2, "http_port": 3, "state": name, "leads_cluster": False}
    return model.Broker(**{**known, "uptime_s": 1.0, "segments": 1, "partitions": 1, **changes})


def topic(name: str, segments: int = 1) -> model.Topic:
    rows = [model.Segment(first_partition=one, end_partition=one + 1, broker_id=one, age_s=1.0) for one in range(segments)]
    return model.Topic(name=name, partitions=segments, segments_total=segments, segments=rows, gates_open=1)


def gate(name: str, windows: int = 1, state: str = "open") -> model.Gate:
    rows = [model.Window(partition=one, base_offset=0, end_offset=10 * one, files=one % 2, bytes=1) for one in range(windows)]
    return model.Gate(
        topic=name, id=name, place=name, state=state, owner=name, age_s=1.0, expires_in_s=1.0, rows_planned=1, rows=1, size_bytes=1,
        files=1, released_by=name, windows_total=windows, windows=rows,
    )  # fmt: skip


def flood(name: str, phase: str = "writing", flood_id: str = "") -> model.Flood:
    return model.Flood(
        topic=name, id=flood_id or name, phase=phase, rows_planned=10, rows_moved=10, rows_written=4, rows_verified=0,
        rows_per_s=2.0, left_s=3.0, age_s=5.0, silent_s=99.0, ended=phase in ("done", "failed"), message=name,
    )  # fmt: skip


def cluster(name: str, many: int = 1) -> model.Cluster:
    capacity = model.Capacity(
        desired=None, live=1, reasons=[name], reservations_total=many,
        reservations=[model.Reservation(id=name, owner=name, brokers=1, left_s=1.0)] * min(many, model.RESERVATIONS_MAX),
        samples=[model.Sample(ago_s=1.0, desired=2, live=1, bytes_in_per_s=1.0, bytes_out_per_s=2.0)] * min(many, 180),
    )  # fmt: skip
    decision = model.Decision(age_s=1.0, kind="split", why=name, topics=[name] * 3, error=name, under_way=True)
    return model.Cluster(
        cluster_id=name, cluster_name=name, broker_id=1, version="1", role="looking", trouble=name, ready=name, leader_broker_id=1,
        manifest_version=1, seen_s=20.0, topics_total=1, partitions_total=1, segments_total=1, bytes_in_per_s=None,
        bytes_out_per_s=None, brokers_total=many,
        brokers=[broker(one, name, late_s=1.0) for one in range(min(many, model.BROKERS_MAX))],
        floods=[flood(name, flood_id=f"{name}{one}") for one in range(min(many, model.FLOODS_MAX))],
        gates=[gate(f"{name}{one}", min(64, many)) for one in range(min(many, model.GATES_MAX))],
        capacity=capacity, decisions=[decision] * min(many, model.DECISIONS_MAX),
    )  # fmt: skip


def everything(name: str, many: int = 1) -> dict[str, str]:
    one = cluster(name, many)
    parts = {part: renderer.shared(part, one) for part in SHARED}
    query = Query(search=name, group=name)
    topics = model.Topics(
        total=9, found=9, page=2, pages=3, search=name, sort="name", topics=[topic(name, min(many, 64))] * min(many, 50)
    )
    rows = [model.Group(id=name, state=name, members=1, positions=2, lag_records=3)] * min(many, model.GROUPS_MAX)
    groups = model.Groups(total=9, found=9, page=2, pages=3, search=name, groups=rows, lag_total=1, age_s=1.0, trouble=name)
    parts["topics"] = renderer.part("topics", topics=topics, query=query)
    parts["groups"] = renderer.part("groups", groups=groups, query=query)
    return parts


def test_names_of_strangers_are_text() -> None:
    parts = everything(HOSTILE)
    query = Query(search=HOSTILE, sort=HOSTILE, group=HOSTILE)
    who = Who(name=HOSTILE, has_session=True, csrf=HOSTILE)
    parts["page"] = renderer.part("page", parts=parts, query=query, title=HOSTILE, cluster_name=HOSTILE, who=who, done=HOSTILE)
    partition = model.Partition(
        partition=0, broker_id=None, leader_epoch=None, log_start=None, high_watermark=None, size_bytes=None
    )
    reader = model.Reader(id=HOSTILE, state=HOSTILE, members=1, positions=1, lag_records=1)
    parts["topic"] = renderer.part("topic", topic=topic(HOSTILE), partitions=[partition], readers=[reader], who=who)
    parts |= hands(who)
    for name, html in parts.items():
        tags = Tags()
        tags.feed(html)
        scripts = [value for attribute, value in tags.attributes if attribute == "src"]
        assert tags.tags.count("script") == len(scripts) and all(one.startswith("/static/") for one in scripts), name
        # The page's policy allows no styles and handlers in elements, so any of these would come from outside.
        assert not [one for one, _ in tags.attributes if one.startswith("on") or one == "style"], name
        links = [value for attribute, value in tags.attributes if attribute in ("href", "action")]
        assert all(one.startswith(("/", "?")) and not one.startswith("//") for one in links), (name, links)
        assert "{{7*7}}" not in html or "49" not in html.split("{{7*7}}")[0][-5:]


@pytest.mark.parametrize(("brokers", "told"), [(1, True), (2, False), (3, False)])
def test_missing_brokers_are_told(brokers: int, told: bool) -> None:
    seen = cluster("c", brokers)
    assert seen.capacity is not None
    head = renderer.shared("head", replace(seen, capacity=replace(seen.capacity, desired=2)))
    assert ("of 2</small>" in head) == told


def hands(who: Who) -> dict[str, str]:
    """The pages of messages, groups and topics, full of hostile names and bytes."""
    hostile = HOSTILE.encode()
    record = Record(1, 2, hostile, hostile, ((HOSTILE, hostile), ("\udcff", b"\xff"), ("h", None)))
    page = Messages(places={0: 1}, unread=[(0, 1, 2, HOSTILE)], windows=[Window(HOSTILE, 0, 1, 2)], troubles=[HOSTILE], left=1)
    asked = Asked(start="newest", at=HOSTILE, partition=HOSTILE, key=HOSTILE, text=HOSTILE, is_next=True)
    group = groups_pb2.Group(id=HOSTILE, state=HOSTILE, members=1)
    position = groups_pb2.GroupPosition(topic=HOSTILE, partition=1, offset=2, member_id=HOSTILE)
    member = groups_pb2.Member(id=HOSTILE, client_id=HOSTILE, client_host=HOSTILE)
    move = Move(topic=HOSTILE, partition=0, before=None, after=1, again=2, skipped=3)
    entry = admin_pb2.ConfigEntry(name=HOSTILE, value=HOSTILE, documentation=HOSTILE)
    made = {
        "messages": renderer.part(
            "messages", who=who, topic=HOSTILE, asked=asked, starts=STARTS, address=asked.address, page=page, places="0-1",
            rows=renderer.part("rows", rows=rows([(0, record)])), mode="search", is_read=True, trouble=HOSTILE,
        ),
        "settings": renderer.part(
            "settings", who=who, topic=HOSTILE, partitions=1, own=[entry], others=[entry], chosen=entry, done=HOSTILE
        ),
        "gate": renderer.part(
            "gate", who=who, gate=gates_pb2.Gate(topic=HOSTILE, id=HOSTILE, owner=HOSTILE), windows=[], is_open=True, offsets=1,
            done=HOSTILE,
        ),
        "reservations": renderer.part(
            "reservations", who=who, reservations=[capacity_pb2.Reservation(id=HOSTILE, owner=HOSTILE)], done=HOSTILE
        ),
        "error": renderer.part("error", who=who, heading=HOSTILE, message=HOSTILE),
        "login": renderer.part("login", who=who, next=HOSTILE, trouble=HOSTILE, user=HOSTILE),
    }  # fmt: skip
    for name, members in (("group", []), ("busy group", [member])):
        made[name] = renderer.part(
            "group", who=who, group=group, protocol=HOSTILE, members=members, topics={HOSTILE: [position]}, rows_max=9,
            moved={HOSTILE: [move]}, again=1, skipped=1, trouble=HOSTILE,
            asked=dict.fromkeys(("topic", "partitions", "to", "at"), HOSTILE), targets=TARGETS, done=HOSTILE,
        )  # fmt: skip
    return made


def test_a_part_is_bounded() -> None:
    """The most of everything, with the longest names that brokers accept."""
    sizes = {name: len(html.encode()) for name, html in everything("n" * 249, 1000).items()}
    assert max(sizes.values()) < PART_BYTES_MAX, sizes


def test_an_empty_cluster_has_a_page() -> None:
    empty = model.Cluster(
        cluster_id="c", cluster_name="", broker_id=1, version="1", role="leading", trouble="", ready="", leader_broker_id=None,
        manifest_version=None, seen_s=None, topics_total=0, partitions_total=0, segments_total=0, bytes_in_per_s=None,
        bytes_out_per_s=None, brokers_total=0, brokers=[], floods=[], gates=[], capacity=None, decisions=[],
    )  # fmt: skip
    for name in SHARED:
        renderer.shared(name, empty)
    nothing = model.Topics(total=0, found=0, page=1, pages=1, search="", sort="name", topics=[])
    assert "No topics yet" in renderer.part("topics", topics=nothing, query=Query())
    groups = model.Groups(total=0, found=0, page=1, pages=1, search="", groups=[], lag_total=0, age_s=None)
    assert "No consumer groups" in renderer.part("groups", groups=groups, query=Query())


def test_a_flood_whose_gate_is_not_among_the_newest_is_filled_too() -> None:
    ended = replace(flood("orders", flood_id="old", phase="done"), rows_verified=10)
    html = renderer.shared("floods", replace(cluster("orders"), gates=[], floods=[ended]))
    (row,) = re.findall(r'<tr id="flood-old".*?</tr>', html, re.S)
    assert [">filled<" in row, ">verified<" in row, ">done<" in row] == [True, True, False]


def test_a_flood_has_its_address() -> None:
    html = renderer.shared("floods", cluster("t"))
    assert 'id="flood-t0"' in html and "gate open" in html


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "\N{EN DASH}"), (0, "0"), (99_999, "99,999"), (123_456, "123 k"), (1_234_567, "1.23 M"), (5e13, "50.0 T")],
)
def test_counts(value: float | None, shown: str) -> None:
    assert text.count(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(0, "0 B"), (999, "999 B"), (1024, "1.00 KiB"), (1.5 * 2**20, "1.50 MiB"), (2**60, "1024 PiB")]
)
def test_sizes(value: float, shown: str) -> None:
    assert text.size(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown", "age"),
    [
        (0, "0 s", "now"), (59.4, "59 s", "50 s ago"), (60, "1 min", "1 min ago"), (200, "3 min 20 s", "3 min ago"),
        (3600, "1 h", "1 h ago"), (18_720, "5 h 12 min", "5 h ago"), (86_400, "1 d", "1 d ago"), (273_600, "3 d 4 h", "3 d ago"),
    ],
)  # fmt: skip
def test_durations(seconds: float, shown: str, age: str) -> None:
    assert text.duration(seconds) == shown and text.age(seconds) == age


def test_windows_fill() -> None:
    tubes = drawing.tubes(gate("g", 5), flood("g"))
    assert [(one.height, one.level, one.solid) for one in tubes] == [
        (0, 0, False), (25, 25, True), (50, 20, False), (75, 75, True), (100, 40, False)
    ]  # fmt: skip
    assert all(one.level == one.height and one.solid for one in drawing.tubes(gate("g", 5, "filled"), None))


def test_charts_reach_from_edge_to_edge() -> None:
    steps = drawing.chart([1, 1, 3], [2, 2, 2], 30, steps=True, slots=3)
    assert steps.first.startswith("M0 ") and steps.first.split(" L")[-1].startswith("1000 ") and steps.area.endswith("Z")
    assert steps.first.count("L") == 3, "one more point, where the number of brokers changes"
    assert drawing.chart([], [], 30, steps=True, slots=3).first == ""
