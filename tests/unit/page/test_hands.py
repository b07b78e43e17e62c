"""Messages and changes at the page: who may do what, what comes of it, and what an attacker gets.

Runs: a broker in memory behind the real application, used as a browser uses it. A mismatch means that a stranger, a website or a
user with few rights reads or changes something, that a person reads something wrong, or that a change has no line in the audit log.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from headgate.broker.cluster import scram
from headgate.broker.cluster.access import User
from headgate.broker.cluster.acl import Operation, Resource
from headgate.broker.cluster.edits.access import DeleteUser, PutUser
from headgate.broker.log.records import Record, encode_batch
from headgate.broker.runtime.config import Value
from headgate.broker.runtime.errors import InvalidError, RetryError
from headgate.broker.server.access.rights import Identity
from headgate.broker.server.grpc.open_calls import Client
from headgate.broker.server.http.hands import reading, sessions
from headgate.broker.server.http.hands.entrance import FORM_BYTES_MAX, local_path
from headgate.broker.server.http.hands.positions import Target, moves, partitions_of, target_of
from headgate.broker.server.http.hands.reading import Pace, places_of, places_text
from headgate.broker.wire.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tests.unit.page.world import LOGINS, Browser, World

Make = Callable[..., Any]
HOSTILE = "<img src=x onerror=alert(1)>\"'&/../%00?#\u202e"


@pytest_asyncio.fixture
async def make() -> AsyncIterator[Make]:
    made: list[World] = []

    async def world(**values: Value) -> World:
        one = World(**values)
        await one.start()
        made.append(one)
        return one

    yield world
    for one in made:
        await one.close()


def batch(*values: str, at_ms: int = 1000) -> bytes:
    return encode_batch([Record(0, at_ms + at, f"k-{value}".encode(), value.encode()) for at, value in enumerate(values)])


async def filled(world: World, messages: int = 300) -> None:
    """A topic of two partitions, with batches of ten."""
    await world.engine.create_topic("t", 2, {})
    for number in range(2):
        await world.fill(
            "t",
            number,
            *(batch(*(f"{number}-{at}" for at in range(low, low + 10)), at_ms=1000 * low) for low in range(0, messages, 10)),
        )


def offsets(text: str) -> list[tuple[int, int]]:
    return [(int(number), int(offset)) for number, offset in re.findall(r'class="where">(\d+)<i>:</i>(\d+)<', text)]


async def pages(browser: Browser, **query: object) -> list[tuple[int, int]]:
    """All messages, page by page."""
    found: list[tuple[int, int]] = []
    while True:
        answer = await browser.get("/topics/t/messages", **query)
        assert answer.status == 200, answer.text
        found += offsets(answer.text)
        link = re.search(r'rel="next" href="[^"]*places=([^"&]+)"', answer.text)
        if link is None or len(found) > 10_000:
            return found
        query["places"] = link[1]


async def test_messages_are_read_page_by_page(make: Make) -> None:
    world = await make()
    await filled(world)
    browser = world.browser()
    newest = await pages(browser)
    every = [(number, at) for number in range(2) for at in range(300)]
    assert sorted(newest) == every, "each once"
    assert newest[:4] == [(0, 299), (1, 299), (0, 298), (1, 298)], "by time, the newest first"
    assert [at for number, at in newest if number == 1] == list(range(299, -1, -1))
    oldest = await pages(browser, **{"from": "oldest"})
    assert sorted(oldest) == every and oldest[:3] == [(0, 0), (1, 0), (0, 1)]
    assert await pages(browser, **{"from": "offset", "at": 290, "partition": 1}) == [(1, at) for at in range(290, 300)]
    assert await pages(browser, **{"from": "time", "at": 280_005, "partition": 0}) == [(0, at) for at in range(285, 300)]
    assert await pages(browser, key="k-1-77") == [(1, 77)]
    assert await pages(browser, key="0x6b2d302d35") == [(0, 5)]
    assert sorted(await pages(browser, text="-29")) == [(n, at) for n in range(2) for at in (29, *range(290, 300))]
    assert await pages(browser, text="-29", **{"from": "oldest", "partition": 0}) == [(0, at) for at in (29, *range(290, 300))]
    nothing = await browser.get("/topics/t/messages", key="nosuch")
    assert "No message matches" in nothing.text
    for query, status in (
        ({"from": "time", "at": "x"}, 400),
        ({"from": "offset"}, 400),
        ({"partition": "9"}, 404),
        ({"partition": "x"}, 400),
    ):
        answer = await browser.get("/topics/t/messages", **query)
        assert answer.status == status and 'role="alert"' in answer.text, query
    assert (await browser.get("/topics/nosuch/messages")).status == 404


async def test_a_live_view_gets_what_comes(make: Make) -> None:
    world = await make()
    await filled(world, 10)
    browser = world.browser()
    first = await browser.get("/topics/t/messages", **{"from": "live"})
    assert offsets(first.text) == [] and 'data-mode="live"' in first.text
    places = re.search(r"places=([^\"&]+)", first.text)
    assert places is not None
    browser.extra = {"headgate-poll": "1"}
    quiet = await browser.get("/topics/t/messages", **{"from": "live", "places": places[1]})
    assert (quiet.status, quiet.text, quiet.headers["headgate-poll"]) == (204, "", "1000")
    await world.fill("t", 1, batch("new"))
    second = await browser.get("/topics/t/messages", **{"from": "live", "places": places[1]})
    assert offsets(second.text) == [(1, 10)] and "places=0-10.1-11" in second.text
    await world.fill("t", 1, *(batch(*(f"{low + at}" for at in range(10))) for low in range(0, 200, 10)))
    third = await browser.get("/topics/t/messages", **{"from": "live", "places": "0-10.1-11"})
    assert offsets(third.text) == [(1, at) for at in range(161, 211)], "the view of a busy topic stays with its newest messages"
    assert "150 messages are left out" in third.text and "places=0-10.1-211" in third.text


def test_live_views_of_a_busy_topic_show_the_same_messages() -> None:
    now_s = 0.0
    pace = Pace(lambda: now_s)
    assert pace.beat("t", {0: 100}) == {0: 100}
    now_s = 0.9
    assert pace.beat("t", {0: 900}) == {0: 100} and pace.beat("other", {0: 5}) == {0: 5}
    now_s = 1.0
    assert pace.beat("t", {0: 1000}) == {0: 1000} and pace.beat("other", {0: 6}) == {0: 5}


def test_many_live_views_ask_in_turns() -> None:
    now_s = 100.0
    pace = Pace(lambda: now_s)
    assert [round(pace.live_pause_s(), 1) for _ in range(10)] == [1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2, 2.4, 2.6, 2.8]
    now_s = 101.0
    assert round(pace.live_pause_s(), 1) == 2.0, "the first of them again"
    now_s = 200.0
    assert pace.live_pause_s() == 1.0
    assert max(pace.live_pause_s() for _ in range(1000)) <= 10.0, "a stranger who asks all the time delays nobody for long"


async def test_a_download_has_every_message(make: Make) -> None:
    world = await make()
    await filled(world)
    answer = await world.browser().get("/topics/t/messages.jsonl", **{"from": "oldest"})
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert len(rows) == 600 and {"topic": "t", "partition": 0, "offset": 7, "timestamp_ms": 7, "key": "k-0-7", "value": "0-7"} in [
        {**row, "timestamp_ms": 7} for row in rows
    ]
    assert answer.headers["content-disposition"] == 'attachment; filename="t.jsonl"'
    found = await world.browser().get("/topics/t/messages.jsonl", key="k-0-7")
    assert [json.loads(line)["offset"] for line in found.text.splitlines()] == [7]


async def test_a_gates_window_shows_as_one(make: Make) -> None:
    world = await make()
    await filled(world, 10)
    await world.node.participant.leader.gates.open("t", "g-1", "now", [1_000_000, 0], 60_000, [], definition="", owner="me")
    await world.fill("t", 0, batch("behind"))
    for query in ({}, {"from": "oldest"}, {"text": "0-"}):
        answer = await world.browser().get("/topics/t/messages", partition=0, **query)
        assert "offsets 10 to 1,000,009 of partition 0" in answer.text and "g-1" in answer.text, query
        assert len(offsets(answer.text)) == (10 if query == {"text": "0-"} else 11)
    assert (await world.browser().get("/topics/t/messages", **{"from": "oldest"})).text.count("A gate's window") == 1


async def test_a_group_is_set_back_and_deleted(make: Make) -> None:
    world = await make(**LOGINS)
    await filled(world)
    browser = world.browser()
    await browser.log_in("admin")
    place = {"id": HOSTILE, "topic": "t", "to": "offset", "at": "100"}
    missing = await browser.get("/group", **place)
    assert missing.status == 404 and "does not exist" in missing.text
    await commit(world, HOSTILE, {0: 250, 1: 50})
    shown = await browser.get("/group", id=HOSTILE)
    assert "<img src=x" not in shown.text and "&lt;img src=x" in shown.text and "300 behind" in shown.text
    preview = await browser.get("/group", **place)
    assert "150 offsets will be read again" in preview.text and "50 offsets will be skipped" in preview.text
    assert positions(world, HOSTILE) == {0: 250, 1: 50}, "a preview changes nothing"
    done = await browser.post("/acts/positions", **place)
    assert done.status == 303 and positions(world, HOSTILE) == {0: 100, 1: 100}
    assert "The positions are set" in (await browser.get("/group", id=HOSTILE, done="positions")).text
    await browser.post("/acts/positions", **{**place, "to": "shift", "at": "-30", "partitions": "1"})
    assert positions(world, HOSTILE) == {0: 100, 1: 70}
    await browser.post("/acts/positions", **{**place, "to": "time", "at": "280005", "topic": ""})
    assert positions(world, HOSTILE) == {0: 285, 1: 285}
    assert (await browser.post("/acts/positions", **{**place, "to": "nowhere"})).status == 400
    assert (await browser.post("/acts/forget-topic", id=HOSTILE, topic="t")).status == 303
    assert positions(world, HOSTILE) == {}
    await commit(world, "other", {0: 1})
    assert (await browser.post("/acts/delete-group", id="other", confirm="othe")).status == 400
    assert (await browser.post("/acts/delete-group", id="other", confirm="other")).headers["location"] == "/?done=group"
    assert (await browser.get("/group", id="other")).status == 404
    acts = [(line["act"], line["outcome"], line["who"], line["door"]) for line in world.lines if line["door"] == "http"]
    assert acts == [
        *[("OffsetCommit", "done", "User:admin", "http")] * 3, ("OffsetDelete", "done", "User:admin", "http"),
        ("DeleteGroups", "done", "User:admin", "http"),
    ]  # fmt: skip


async def commit(world: World, group: str, offsets: dict[int, int]) -> None:
    """Positions of a client that is no member."""
    rows = [OffsetCommitRequestPartition(partition_index=number, committed_offset=at) for number, at in offsets.items()]
    request = OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name="t", partitions=rows)])
    answer = await world.server.inner.ask(request, OffsetCommitResponse, lambda answer: answer, Client(host="", door="test"))
    assert [row.error_code for row in answer.topics[0].partitions] == [0] * len(rows)


def positions(world: World, group: str) -> dict[int, int]:
    return {partition: value.offset for _, partition, value in world.node.groups.positions(group)}


async def test_topics_are_made_changed_and_deleted(make: Make) -> None:
    world = await make()
    browser = world.browser()
    await browser.get("/new-topic")
    made = await browser.post(
        "/acts/create-topic", name="visits", partitions="3", settings="retention.ms = 60000\n\ncleanup.policy=delete"
    )
    assert made.headers["location"] == "/topics/visits/settings?done=created"
    topic = world.engine.topic("visits")
    assert topic.partitions == 3 and topic.config["retention.ms"] == "60000"
    page = await browser.get("/topics/visits/settings", change="retention.ms")
    assert 'value="60000"' in page.text and "segment.bytes" in page.text
    await browser.post("/acts/setting", topic="visits", setting="retention.ms", value="70000")
    assert world.engine.topic("visits").config["retention.ms"] == "70000"
    wrong = await browser.post("/acts/setting", topic="visits", setting="retention.ms", value="soon")
    assert wrong.status == 400 and "retention.ms" in wrong.text
    await browser.post("/acts/default", topic="visits", setting="retention.ms")
    assert "retention.ms" not in world.engine.topic("visits").config
    await browser.post("/acts/partitions", topic="visits", total="5")
    assert world.engine.topic("visits").partitions == 5
    for total in ("4", "0", "-1", "x", "99999999999"):
        assert (await browser.post("/acts/partitions", topic="visits", total=total)).status == 400, total
    for fields in (
        {"name": "visits", "partitions": "1"},
        {"name": "a b"},
        {"name": "c", "settings": "x"},
        {"name": "c", "settings": "nosuch=1"},
    ):
        refused = await browser.post("/acts/create-topic", **fields)
        assert refused.status == 400 and 'role="alert"' in refused.text, fields
    assert (await browser.post("/acts/delete-topic", topic="visits", confirm="visit")).status == 400
    assert (await browser.post("/acts/delete-topic", topic="visits", confirm="visits")).headers["location"] == "/?done=topic"
    assert not world.engine.topics()
    assert [line["act"] for line in world.lines if line["outcome"] == "done"] == [
        "CreateTopics", "IncrementalAlterConfigs", "IncrementalAlterConfigs", "CreatePartitions", "DeleteTopics",
    ]  # fmt: skip


async def test_gates_are_released_and_brokers_reserved(make: Make) -> None:
    world = await make()
    await filled(world, 10)
    await world.node.participant.leader.gates.open("t", "g-1", "now", [5, 0], 60_000, [], definition="", owner="me")
    browser = world.browser()
    gate = {"topic": "t", "id": "g-1"}
    shown = await browser.get("/gate", **gate)
    assert shown.status == 200 and "5 offsets in" in shown.text and "opened by me" in shown.text
    assert (await browser.post("/acts/release-gate", **gate, confirm="g")).status == 400
    assert (await browser.post("/acts/release-gate", **gate, confirm=gate["id"])).status == 303
    assert "released" in (await browser.get("/gate", **gate, done="released")).text
    assert (await browser.get("/gate", topic="t", id="nosuch")).status == 404
    for wrong in ({"brokers": "x", "time": "30m"}, {"brokers": "2", "time": "soon"}, {"brokers": "9999", "time": "30m"}):
        assert (await browser.post("/acts/reserve", **wrong)).status == 400, wrong
    assert (await browser.post("/acts/reserve", brokers="2", time="30m")).status == 303
    listed = await browser.get("/reservations")
    found = re.search(r'name="id" value="([^"]+)"', listed.text)
    assert found is not None and "the page" in listed.text
    assert (await browser.post("/acts/give-back", id=found[1])).status == 303
    assert "No reservation is open." in (await browser.get("/reservations")).text
    assert [line["act"] for line in world.lines if line["outcome"] == "done"] == [
        "Gates/ReleaseGate", "Capacity/OpenReservation", "Capacity/ReleaseReservation",
    ]  # fmt: skip


async def test_users_and_rules_are_made_changed_and_removed(make: Make) -> None:
    world = await make(**LOGINS)
    access = world.engine.manifest.access
    hostile = HOSTILE[:-1]  # a name can be printed
    admin, alice = world.browser(), world.browser()
    await admin.log_in("admin")
    await admin.get("/access")
    made = await admin.post("/acts/create-user", name=hostile, password="secret-1")
    assert made.status == 303 and (await admin.post("/acts/create-user", name=hostile, password="x")).status == 400
    await admin.post("/acts/create-user", name="alice", password="secret-2", superuser="yes")
    assert access.users["alice"].superuser and not access.users[hostile].superuser
    shown = await admin.get("/access", user=hostile, done="created")
    assert "<img src=x" not in shown.text and "The user is created." in shown.text and "secret-1" not in shown.text
    assert (await alice.log_in("alice", "secret-2")).status == 303
    await admin.post("/acts/set-password", user="alice", password="secret-3")
    assert (await alice.get("/access")).status == 303, "a login ends with the password that it was made with"
    assert (await alice.log_in("alice", "secret-3")).status == 303
    rule = {"permission": "allow", "principal": "User:bob", "operation": "read, describe", "resource": "topic", "name": "t*"}
    assert (await admin.post("/acts/add-rules", **rule)).status == 303
    assert {(acl.operation, acl.name, acl.pattern.name, acl.host) for acl in access.acls.all} == {
        (operation, "t", "PREFIXED", "*") for operation in (Operation.READ, Operation.DESCRIBE)
    }
    listed = await admin.get("/access", search="bob")
    assert listed.text.count('class="name long" title="User:bob"') == 2 and 'title="alice"' not in listed.text
    for wrong in (
        {"operation": ""}, {"operation": "fly"}, {"principal": "bob"}, {"resource": "sky"}, {"name": ""}, {"host": "nowhere"},
        {"resource": "group", "operation": "write"},
    ):  # fmt: skip
        assert (await admin.post("/acts/add-rules", **{**rule, **wrong})).status == 400, wrong
    exactly = {**rule, "operation": "read", "name": "t", "pattern": "prefixed", "host": "*"}
    assert (await admin.post("/acts/remove-rule", **exactly)).status == 303
    assert [acl.operation for acl in access.acls.all] == [Operation.DESCRIBE]
    gone = await admin.post("/acts/remove-rule", **exactly)
    assert gone.status == 404 and "not there any more" in gone.text
    assert (await admin.post("/acts/create-user", name="carol", password="")).status == 400
    assert (await admin.post("/acts/delete-user", user="alice", confirm="alic")).status == 400
    assert (await admin.post("/acts/delete-user", user="alice", confirm="alice")).status == 303
    assert (await alice.get("/access")).status == 303 and "alice" not in access.users
    for act, fields in (("delete-user", {"confirm": "alice"}), ("set-password", {"password": "x"})):
        assert (await admin.post(f"/acts/{act}", user="alice", **fields)).status == 404, "another person deleted the user"
    assert (await admin.get("/access", user="alice")).status == 404
    assert [line["act"] for line in world.lines if line["outcome"] == "done" and line["door"] == "http"] == [
        "Access/CreateUser", "Access/CreateUser", "Access/SetPassword", "CreateAcls", "DeleteAcls", "DeleteAcls",
        "Access/DeleteUser",
    ]  # fmt: skip
    assert "secret-" not in json.dumps(world.lines)


async def test_a_lonely_broker_is_not_drained(make: Make) -> None:
    browser = (await make()).browser()
    shown = await browser.get("/broker", id=1)
    assert shown.status == 200 and "No other broker could take its segments." in shown.text
    await browser.get("/new-topic")
    for fields, text in (
        ({"id": "1", "confirm": "1"}, "no other broker"), ({"id": "7", "confirm": "7"}, "no live broker"),
        ({"id": "1", "confirm": "2"}, "write its number"), ({"id": "x", "confirm": "x"}, "not a number"),
    ):  # fmt: skip
        refused = await browser.post("/acts/drain", **fields)
        assert refused.status == 400 and text in refused.text.lower(), fields
    assert (await browser.get("/broker", id="x")).status == 404


RULE = {"permission": "allow", "principal": "User:reader", "operation": "read", "resource": "topic", "name": "t", "host": ""}
READS = (
    ("/topics/t/messages", {}),
    ("/topics/t/messages.jsonl", {}),
    ("/topics/t/settings", {}),
    ("/new-topic", {}),
    ("/group", {"id": "g"}),
    ("/access", {}),
    ("/broker", {"id": 1}),
)
ACTS = (
    ("create-topic", {"name": "made", "partitions": "1"}), ("setting", {"topic": "t", "setting": "retention.ms", "value": "1"}),
    ("default", {"topic": "t", "setting": "retention.ms"}), ("partitions", {"topic": "t", "total": "9"}),
    ("delete-topic", {"topic": "t", "confirm": "t"}), ("positions", {"id": "g", "to": "earliest", "topic": "t"}),
    ("forget-topic", {"id": "g", "topic": "t"}), ("release-gate", {"topic": "t", "id": "g", "confirm": "g"}),
    ("reserve", {"brokers": "2", "time": "30m"}), ("give-back", {"id": "g"}), ("delete-group", {"id": "g", "confirm": "g"}),
    ("drain", {"id": "1", "confirm": "1"}), ("create-user", {"name": "made", "password": "x"}),
    ("set-password", {"user": "reader", "password": "x"}), ("delete-user", {"user": "reader", "confirm": "reader"}),
    ("add-rules", {**RULE, "operation": "all", "principal": "User:reader"}), ("remove-rule", {**RULE, "pattern": "literal"}),
)  # fmt: skip


def unchanged(world: World) -> bool:
    topics = [topic for topic in world.engine.topics() if topic.name != "__consumer_offsets"]
    return (
        [topic.name for topic in topics] == ["t"]
        and topics[0].partitions == 2
        and not topics[0].config
        and positions(world, "g") == {0: 5}
        and "made" not in world.engine.manifest.access.users
    )


async def test_a_user_with_few_rights_gets_no_further_than_with_the_command_line(make: Make) -> None:
    world = await make(**LOGINS)
    await filled(world, 10)
    await commit(world, "g", {0: 5})
    await world.add_user("nobody")
    await world.add_user("reader", (Resource.TOPIC, "t", Operation.READ))
    nobody, reader = world.browser(), world.browser()
    assert (await nobody.log_in("nobody")).status == 303 and (await reader.log_in("reader")).status == 303
    await nobody.get("/new-topic")
    await reader.get("/new-topic")
    for path, query in READS:
        assert (await nobody.get(path, **query)).status == (200 if path == "/new-topic" else 403), path
    secret = await nobody.get("/topics/nosuch/messages")
    assert secret.status == 403, "it is not told whether the topic exists"
    for browser in (nobody, reader):
        for act, fields in ACTS:
            answer = await browser.post(f"/acts/{act}", **fields)
            assert answer.status == 403, (act, answer.status, answer.text)
        assert (await browser.get("/")).status == 403
    assert unchanged(world)
    assert len(offsets((await reader.get("/topics/t/messages")).text)) == 20
    assert (await reader.get("/group", id="g")).status == 403
    refused = {(line["who"], line["act"]) for line in world.lines if line["outcome"] == "refused" and line["door"] == "http"}
    assert refused >= {("User:nobody", "DeleteTopics"), ("User:reader", "CreateTopics"), ("User:nobody", "Log/ListOffsets")}


async def test_strangers_are_sent_to_the_login(make: Make) -> None:
    world = await make(**LOGINS)
    await filled(world, 10)
    await commit(world, "g", {0: 5})
    stranger = world.browser()
    for path, query in (*READS, ("/", {})):
        answer = await stranger.get(path, **query)
        assert (answer.status, answer.headers["location"][:12]) == (303, "/login?next="), path
    for act, fields in ACTS:
        assert (await stranger.post(f"/acts/{act}", **fields)).headers["location"] == "/login"
    assert unchanged(world)
    form = await stranger.get("/login", next="//evil.example")
    assert 'name="next" value="/"' in form.text
    assert (await stranger.log_in("admin", "wrong")).status == 401 and not stranger.cookies
    assert (await stranger.log_in("admin")).status == 303 and list(stranger.cookies) == ["headgate-9090"]
    assert (await stranger.get("/topics/t/messages")).status == 200
    front = await stranger.get("/")
    assert "Log out" in front.text and 'title="you">admin<' in front.text


async def test_a_session_ends(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world = await make(**LOGINS)
    await world.add_user("alice", (Resource.CLUSTER, "kafka-cluster", Operation.DESCRIBE))
    alice = world.browser()
    planted = alice.cookies["headgate-9090"] = "chosen-by-an-attacker"
    given = await alice.log_in("alice")
    assert alice.cookies["headgate-9090"] != planted, "a cookie from elsewhere never becomes a session"
    attributes = {one.strip().lower() for one in given.headers["set-cookie"].split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= attributes
    assert (await alice.get("/")).status == 200
    other = world.browser()
    other.cookies = dict(alice.cookies)
    await alice.post("/acts/log-out")
    assert (await other.get("/")).status == 303, "the cookie is worth nothing after the logout"
    for change in (
        PutUser(User(name="alice", verifiers=scram.verifiers("another", bytes), created_ms=1), new=False),
        DeleteUser("alice"),
    ):
        await alice.log_in("alice")
        assert (await alice.get("/")).status == 200
        await world.engine.change_access(change)
        assert (await alice.get("/")).status == 303, change
        if isinstance(change, PutUser):
            await world.engine.change_access(DeleteUser("alice"))
            await world.add_user("alice", (Resource.CLUSTER, "kafka-cluster", Operation.DESCRIBE))


def test_sessions_are_bounded_in_number_and_time() -> None:
    now = [0.0]
    book = sessions.Sessions(lambda: now[0])
    identity = Identity(principal="User:alice", host="h")
    tokens = [book.open(identity, 1) for _ in range(sessions.OF_USER_MAX + 1)]
    assert book.find(tokens[0]) is None and book.find(tokens[-1]) is not None and len(book) == sessions.OF_USER_MAX
    for number in range(2 * sessions.SESSIONS_MAX):
        book.open(Identity(principal=f"User:{number}", host="h"), 1)
    assert len(book) == sessions.SESSIONS_MAX
    token = book.open(identity, 1)
    now[0] += sessions.IDLE_S
    assert book.find(token) is None
    token = book.open(identity, 1)
    for _ in range(20):
        now[0] += sessions.IDLE_S - 1
        book.find(token)
    assert book.find(token) is None, "also one that is in use ends"
    short = book.open(Identity(principal="User:b", host="h", expires_s=now[0] + 5), 1)
    now[0] += 6
    assert book.find(short) is None
    assert book.csrf_of("User:a") != book.csrf_of("User:b") != sessions.Sessions(float).csrf_of("User:b")


FOREIGN: tuple[dict[str, str], ...] = (
    {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": ""}, {"origin": "http://127.0.0.1:3000"},
    {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"content-type": "text/plain"}, {"content-type": ""},
)  # fmt: skip


@pytest.mark.parametrize("values", [{}, LOGINS], ids=["loopback", "login"])
async def test_forms_of_other_websites_are_refused(make: Make, values: dict[str, Value]) -> None:
    world = await make(**values)
    await filled(world, 10)
    browser = world.browser()
    if values:
        await browser.log_in("admin")
    await browser.get("/new-topic")
    good = browser.csrf
    fields: dict[str, object] = {"name": "made", "partitions": "1"}
    for extra in FOREIGN:
        browser.extra = extra
        assert (await browser.post("/acts/create-topic", **fields)).status in (400, 403), extra
    browser.extra = {}
    for token in ("", "x", good[:-1], good + "0", world.sessions.csrf_of("User:other")):
        browser.csrf = token
        assert (await browser.post("/acts/create-topic", **fields)).status == 403, token
    browser.csrf = good
    browser.host = "evil.example"  # its own name, which it points to this broker
    assert (await browser.post("/acts/create-topic", **fields)).status == 421
    browser.host = "127.0.0.1:9090"
    assert (await browser.post("/acts/create-topic", **fields, more="x" * FORM_BYTES_MAX)).status == 400
    assert (await browser.get("/acts/create-topic", csrf=good, **fields)).status == 405
    assert [topic.name for topic in world.engine.topics()] == ["t"]
    browser.extra = {"sec-fetch-site": "cross-site"}
    link = await browser.get("/topics/t/messages")
    assert offsets(link.text) == [] and "Press Show" in link.text, "a link elsewhere makes the broker read nothing"
    assert (await browser.get("/topics/t/messages.jsonl")).status == 403
    browser.extra = {}
    assert (await browser.post("/acts/create-topic", **fields)).status == 303


async def test_without_logins_hands_are_for_the_brokers_machine(make: Make) -> None:
    world = await make(http_allowed_hosts="proxy.example")
    await filled(world, 10)
    local, remote, proxied = world.browser(), world.browser(), world.browser()
    remote.address, remote.host = "10.1.2.3", "10.9.9.9:9090"
    proxied.host = "proxy.example"
    await local.get("/new-topic")
    for browser in (remote, proxied):
        browser.csrf = local.csrf
        assert (await browser.get("/")).status == 200, "to look at the cluster is as before"
        for path, query in READS:
            answer = await browser.get(path, **query)
            assert answer.status == 403 and "own machine" in answer.text, path
        assert (await browser.post("/acts/create-topic", name="made")).status == 403
    local.host = "localhost:9090"
    assert (await local.get("/topics/t/messages")).status == 200
    assert (await local.get("/login")).headers["location"] == "/"


async def test_hands_can_be_switched_off(make: Make) -> None:
    world = await make(http_actions=False)
    await filled(world, 10)
    browser = world.browser()
    for path, query in READS:
        answer = await browser.get(path, **query)
        assert answer.status == 403 and "http_actions" in answer.text
    assert (await browser.post("/acts/create-topic", name="made")).status == 403
    front, topic = await browser.get("/"), await browser.get("/topics/t")
    assert front.status == topic.status == 200
    assert "/new-topic" not in front.text and "/messages" not in topic.text
    guarded = (await make(http_actions=False, **LOGINS)).browser()
    asked = await guarded.get("/")
    assert asked.status == 401 and "www-authenticate" in asked.headers, "a browser asks for a password, as before"
    assert (await guarded.get("/login")).headers["location"] == "/"
    assert (await guarded.log_in("admin")).status == 400 and not guarded.cookies


async def test_many_open_views_wait_in_turn(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world = await make()
    await filled(world, 50)
    monkeypatch.setattr(reading, "WAITING_MAX", 10)
    answers = await asyncio.gather(*(world.browser().get("/topics/t/messages") for _ in range(100)))
    found = {answer.status for answer in answers}
    assert found == {200, 503} and sum(answer.status == 200 for answer in answers) >= 10
    assert "too many people" in next(answer.text for answer in answers if answer.status == 503).lower()
    assert (await world.browser().get("/topics/t/messages")).status == 200


async def test_a_page_of_messages_has_a_bound(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search stops after its bytes, says how far it came, and goes on from there."""
    world = await make()
    await filled(world, 2000)
    monkeypatch.setattr(reading, "SEARCH_BYTES", 20_000)
    monkeypatch.setattr(reading, "FETCH_BYTES", 4_000)
    answer = await world.browser().get("/topics/t/messages", key="k-0-3")
    assert offsets(answer.text) == [] and re.search(r"Searched [\d,]+ of 4,000 offsets", answer.text) and "Search on" in answer.text
    assert await pages(world.browser(), key="k-0-3") == [(0, 3)]
    pace = Pace(float)
    monkeypatch.setattr(reading, "WAITING_MAX", 0)
    with pytest.raises(RetryError):
        async with pace.turn():
            pass


def test_places_in_an_address() -> None:
    assert places_of(places_text({0: 5, 11: 7})) == {0: 5, 11: 7}
    for text in ("", "x", "0", "0-", "-5", "0-5.", "0-99999999999999999999", "٣-1"):
        assert places_of(text) is None, text


def test_where_positions_go() -> None:
    places = {("t", 0): 50, ("t", 1): None}
    bounds = {("t", 0): 10, ("t", 1): 10}, {("t", 0): 100, ("t", 1): 100}, {("t", 0): 60, ("t", 1): 70}

    def gone(target: Target) -> list[tuple[int, int, int]]:
        return [(one.after, one.again, one.skipped) for one in moves(target, places, *bounds)]

    assert gone(Target(kind="earliest")) == [(10, 40, 0), (10, 0, 0)]
    assert gone(Target(kind="latest")) == [(100, 0, 50), (100, 0, 0)]
    assert gone(Target(kind="time")) == [(60, 0, 10), (70, 0, 0)]
    assert gone(Target(kind="offset", value=1 << 60)) == [(100, 0, 50), (100, 0, 0)]
    assert gone(Target(kind="shift", value=-1000)) == [(10, 40, 0)], "a group without a position has nothing to shift"
    assert target_of("shift", "-5", 0) == Target(kind="shift", value=-5) and target_of("time", "1h", 3_600_001).value == 1
    assert partitions_of("") is None and partitions_of("0, 3-5") == {0, 3, 4, 5}
    for text in ("x", "5-", "1-99999999", "٣"):
        with pytest.raises(InvalidError):
            partitions_of(text)
    for kind, text in (("offset", "-1"), ("offset", ""), ("time", ""), ("shift", "--1"), ("nowhere", "1")):
        with pytest.raises(InvalidError):
            target_of(kind, text, 0)


def test_only_paths_of_this_page_follow_a_login() -> None:
    assert local_path("/topics/t?x=1") == "/topics/t?x=1"
    for text in ("//evil.example", "/\\evil.example", "https://evil.example", "javascript:x", "", "/a\r\nb", "evil"):
        assert local_path(text) == "/", text
