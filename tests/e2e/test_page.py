"""The page of a broker, opened by a headless Chromium while a real cluster works.

Compared: what a person sees with what the clients did: rates, leads, a split with its reason, a group with lag, a flood whose
windows fill, without a reload and without a complaint of the browser about the page's policy. A broker that is cut off says so.
With HEADGATE_PICTURES=DIR the first two tests save the READMEs' pictures there. A mismatch means that people are shown something
wrong, or that a stranger's name runs as a script in their browser.

The second test uses the page's hands by clicking, as an administrator and as a user with few rights: it finds a message by key,
sets a group back by time and reads again with a real consumer, and makes a topic and a user. The third one drains a broker and the
leader, opens a reservation and releases a gate, while other people change what the page shows and the leader is killed.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headgate.broker.client.control import Control
from headgate.broker.wire.grpc.headgate.v1 import control_pb2
from tests.conftest import BrokerFactory
from tests.support import busy
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.chromium import Page, chromium
from tests.support.cluster import PATIENT, Brokers, s3_doors
from tests.support.network import Network
from tests.support.ports import free_port
from tests.support.s3_server import S3Server
from tests.support.waiting import until

PATIENCE_S = 120.0
HOSTILE = "<img src=x onerror=document.title='owned'>"
PARTITIONS = {
    "clicks": 12, "orders": 8, "payments": 6, "telemetry": 24, "audit": 4, "sessions": 6, "emails": 3, "search-queries": 16,
}  # fmt: skip
RATES = {"clicks": 300, "orders": 90, "payments": 40, "telemetry": 900, "sessions": 100, "search-queries": 200, "audit": 4}
FLOOD = "clicks-2026-11-23"
ROWS = [400 + number * 7919 % 300 for number in range(12)]
WATCH_POLICY = """
    window.complaints = [];
    document.addEventListener("securitypolicyviolation", (event) => complaints.push(event.violatedDirective));
    addEventListener("error", (event) => complaints.push(event.message));
"""


def api(broker: BrokerProcess, path: str) -> Any:
    with urllib.request.urlopen(f"http://{HOST}:{broker.http_port}{path}", timeout=60) as answer:
        return json.loads(answer.read())


@contextmanager
def busy_cluster(make_broker: BrokerFactory, tmp_path: Path) -> Iterator[Brokers]:
    brokers = Brokers(make_broker, tmp_path / "store", env={**busy.ENV, **PATIENT, "HEADGATE_CLUSTER_NAME": "flights-eu"})
    brokers.start()
    busy.make_topics(brokers.bootstrap, PARTITIONS)
    with busy.Traffic(brokers.bootstrap, RATES):
        yield brokers


def cluster_of(brokers: Brokers) -> str:
    return ",".join(f"{HOST}:{broker.grpc_port}" for broker in brokers.all)


@pytest.mark.chromium
@pytest.mark.timeout(600)
def test_a_person_watches_a_busy_cluster(make_broker: BrokerFactory, tmp_path: Path) -> None:
    with busy_cluster(make_broker, tmp_path) as brokers:
        follower = next(one for one in brokers.all if one is not brokers.leader())
        asyncio.run(reserve(cluster_of(brokers)))
        groups = [busy.read_some(brokers.bootstrap, *some) for some in (("billing", "orders", 50), (HOSTILE, "clicks", 20))]
        flood = busy.PlayedFlood(cluster_of(brokers), "clicks", FLOOD, ROWS)
        try:
            with chromium(tmp_path) as page:
                page.ask("Page.addScriptToEvaluateOnNewDocument", source=WATCH_POLICY)
                page.open(f"http://{HOST}:{follower.http_port}/")
                page.until_text("flights-eu")
                page.until("updates", "document.querySelector('#live').dataset.state === 'live'")
                look_at_brokers(page, brokers)
                look_at_topics(page, brokers)
                look_at_groups(page, groups)
                use_another_brokers_partitions(follower)
                watch_a_flood(page, flood, follower)
                assert page.run("document.title") == f"Headgate broker {brokers.number(follower)} · flights-eu"
                assert page.run("performance.getEntriesByType('navigation')[0].type") == "navigate", "the page was loaded once"
                assert page.run("window.complaints") == []
                elsewhere = "performance.getEntriesByType('resource').filter(one => !one.name.startsWith(location.origin)).length"
                assert page.run(elsewhere) == 0
                end_the_flood(page, flood)
        finally:
            for group in groups:
                group.close()


async def reserve(cluster: str) -> None:
    async with Control(cluster) as control:
        await control.open_reservation(3, ttl_ms=1_800_000, reservation_id="nightly-backfill", owner="dagster")


def look_at_brokers(page: Page, brokers: Brokers) -> None:
    leader = brokers.number(brokers.leader())
    page.until("three brokers", "document.querySelectorAll('.broker').length === 3")
    page.until("the leader", f"document.querySelector('#broker-{leader}').innerText.includes('leader')")
    page.until("traffic", "/[1-9].* [KM]iB\\/s/.test(document.querySelector('.tiles').innerText)")
    page.until_text("nightly-backfill")


def look_at_topics(page: Page, brokers: Brokers) -> None:
    """Search, and see a split by hand with its reason."""
    page.write("input[name=search]", "telem")
    page.until("one row", "document.querySelectorAll('table.topics tbody tr').length === 1")
    strip = "document.querySelectorAll('.strip rect').length"
    before = page.run(strip)

    def split() -> bool:
        """False if the leader itself has split the segment meanwhile."""
        first = brokers.segments("telemetry")[0]
        try:
            brokers.control("Reshard", control_pb2.ReshardRequest(split=control_pb2.ReshardRequest.Split(segment_id=first.id)))
        except grpc.RpcError:
            return False
        return True

    until(split, "the leader takes the order to split")
    page.until("one more segment", f"{strip} > {before}")
    page.until(
        "the split is told", "[...document.querySelectorAll('.kind-split')].some(one => one.innerText.includes('telemetry'))"
    )
    assert page.run("location.search").startswith("?search=telem")
    page.write("input[name=search]", "")
    page.until("all topics", f"document.querySelectorAll('table.topics tbody tr').length === {len(PARTITIONS)}")


def look_at_groups(page: Page, groups: list[Consumer]) -> None:
    page.until("two groups with lag", "document.querySelectorAll('table.groups tbody tr').length === 2")
    page.until_text(HOSTILE)
    lag = "document.querySelector('table.groups tbody tr td:nth-child(5)').title"
    page.until("the lag grows", f"parseInt({lag}.replaceAll(',', '')) > 0")


def use_another_brokers_partitions(broker: BrokerProcess) -> None:
    """Messages that other brokers lead, and a group that runs: its positions stay."""
    url = f"http://{HOST}:{broker.http_port}"

    def read() -> bool:
        partitions = api(broker, "/api/topics/telemetry")["partitions"]
        full = {
            one["partition"] for one in partitions if one["high_watermark"] is not None and one["high_watermark"] > one["log_start"]
        }
        with urllib.request.urlopen(f"{url}/topics/telemetry/messages.jsonl?from=oldest", timeout=60) as answer:
            rows = [json.loads(line) for line in answer.read().splitlines()]
        # While a segment moves, the download says what is missing.
        known = not any("headgate" in row for row in rows)
        return known and len({one["broker_id"] for one in partitions}) > 1 and full <= {row["partition"] for row in rows}

    until(read, "messages of all leads", PATIENCE_S)
    with urllib.request.urlopen(f"{url}/group?id=billing", timeout=60) as answer:
        html = answer.read().decode()
    assert "Stop its consumers first" in html
    with urllib.request.urlopen(f"{url}/new-topic", timeout=60) as answer:
        token = re.search(r'name="csrf" value="([^"]+)"', answer.read().decode())
    assert token is not None
    for act in ("positions", "delete-group"):
        form = urllib.parse.urlencode({"csrf": token[1], "id": "billing", "to": "earliest", "confirm": "billing"}).encode()
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(urllib.request.Request(f"{url}/acts/{act}", form, {"Origin": url}), timeout=60)
        with caught.value as refused:
            assert refused.code == 400 and "active members" in refused.read().decode(), act


def watch_a_flood(page: Page, flood: busy.PlayedFlood, broker: BrokerProcess) -> None:
    asyncio.run(flood.report("counting"))
    page.until("the flood", f"!!document.getElementById('flood-{FLOOD}')")
    asyncio.run(flood.open())
    asyncio.run(flood.report("writing", 0.1))
    page.until("its windows", "document.querySelectorAll('.tube').length === 12")
    asyncio.run(flood.upload(5))
    for number in range(1, 9):
        asyncio.run(flood.report("writing", 0.1 + number * 0.06, "tasks work on columns, with Arrow"))
        time.sleep(0.5)  # a driver reports about so often; the page shows a rate
    page.until("five windows are full", "document.querySelectorAll('.tube.solid').length === 5")
    page.until("a rate and the time left", "!document.querySelector('.flood .figures').innerText.includes('\\u2013')")
    # Another broker than the leader learns of the last report a moment later.
    told = {"rows_planned": sum(ROWS), "rows_written": round(0.58 * sum(ROWS)), "ended": False}
    until(lambda: told.items() <= api(broker, f"/api/floods/{FLOOD}")["floods"][0].items(), "the last report", PATIENCE_S)
    page.open(f"http://{HOST}:{broker.http_port}/floods/{FLOOD}")
    page.until("the flood is marked", f"document.querySelector('.aim').id === 'flood-{FLOOD}'")
    if "HEADGATE_PICTURES" in os.environ:
        take_pictures(page, Path(os.environ["HEADGATE_PICTURES"]), broker)


def take_pictures(page: Page, directory: Path, broker: BrokerProcess) -> None:
    for name, width, height, theme, scale in (
        ("page", 1360, 1180, "light", 1), ("page-dark", 1360, 1180, "dark", 1), ("page-phone", 400, 860, "dark", 1.5)
    ):  # fmt: skip
        page.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=width < 500)
        page.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        page.open(f"http://{HOST}:{broker.http_port}/")
        page.until("updates", "document.querySelector('#live').dataset.state === 'live'")
        time.sleep(3)  # bars move to their places
        page.picture(directory / f"{name}.png")
    page.ask("Emulation.setDeviceMetricsOverride", width=1360, height=850, deviceScaleFactor=1, mobile=False)


def end_the_flood(page: Page, flood: busy.PlayedFlood) -> None:
    asyncio.run(flood.upload(12))
    asyncio.run(flood.fill())
    asyncio.run(flood.report("done", message="all is there"))
    page.until(
        "the flood is over",
        "!document.querySelector('.tube') && document.querySelector('#floods-over').innerText.includes('filled')",
    )
    page.until("it is told", "[...document.querySelectorAll('.kind-gate')].some(one => one.innerText.includes('in one step'))")


ADMIN_PASSWORD, ALICE_PASSWORD = "planted-admin-52d0", "planted-alice-c1f7"
MESSAGES, KEYS = 20_000, 5_000
STEP_MS = 100


@pytest.mark.chromium
@pytest.mark.timeout(600)
def test_a_person_looks_for_a_message_and_sets_a_group_back(make_broker: BrokerFactory, tmp_path: Path) -> None:
    settings = {
        "KAFKA_LISTENERS": f"SASL_PLAINTEXT://{HOST}:{free_port()}", "AUTHORIZATION": "acl", "SUPER_USERS": "User:ANONYMOUS",
        "ADMIN_PASSWORD": ADMIN_PASSWORD,
    }  # fmt: skip
    broker = make_broker(env={f"HEADGATE_{name}": value for name, value in settings.items()})
    broker.start()
    began_ms = fill(broker)
    with chromium(tmp_path) as page:
        page.ask("Page.addScriptToEvaluateOnNewDocument", source=WATCH_POLICY)
        page.open(f"http://{HOST}:{broker.http_port}/topics/clicks/messages")
        log_in(page, "admin", "wrong")
        page.until_text("The name or the password is wrong")
        log_in(page, "admin", ADMIN_PASSWORD)
        find_a_message(page)
        set_back(page, broker, began_ms)
        make_a_topic(page, broker)
        let_alice_in(page, broker)
        assert page.run("window.complaints") == [] and page.run("document.title") != "owned"
        page.click("Log out")
        page.until_text("Log in")
        log_in(page, "alice", ALICE_PASSWORD)
        try_as_alice(page, broker)
        assert page.run("window.complaints") == []


def fill(broker: BrokerProcess) -> int:
    """Messages, and a group that has read all of them. Returns the time of the first message, in ms."""
    client = {"bootstrap.servers": broker.bootstrap}
    admin = AdminClient(client)
    admin.create_topics([NewTopic("clicks", 4)])["clicks"].result(60)
    began_ms = round(time.time() * 1000) - MESSAGES * STEP_MS
    producer = Producer({**client, "linger.ms": 50})
    for number in range(MESSAGES):
        value = json.dumps({"number": number, "page": HOSTILE if number % KEYS == 77 else "/"}).encode()
        key = f"user-{number % KEYS}".encode()
        producer.produce("clicks", value, key, timestamp=began_ms + number * STEP_MS, headers=[(HOSTILE, HOSTILE.encode())])
        if not number % 1000:
            producer.poll(0)
    assert producer.flush(60) == 0
    assert len(read(broker, MESSAGES)) == MESSAGES
    return began_ms


def read(broker: BrokerProcess, count: int) -> list[int]:
    """The numbers of the next messages of the group, which it then has read."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "billing", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.subscribe(["clicks"])
    found: list[int] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        found += [json.loads(message.value())["number"] for message in consumer.consume(5000, 1.0)]
    if found:
        consumer.commit(asynchronous=False)
    consumer.close()
    return found


def log_in(page: Page, user: str, password: str) -> None:
    page.write("input[name=user]", user)
    page.write("input[name=password]", password)
    page.click("Log in", "button")


def find_a_message(page: Page) -> None:
    page.until("the newest messages", "document.querySelectorAll('#rows > li').length === 50")
    page.click("Older", "a")
    page.until("older ones behind them", "document.querySelectorAll('#rows > li').length === 100")
    page.write("input[name=key]", "user-77")
    page.click("Show", "button")
    page.until("four messages", "document.querySelectorAll('#rows > li').length === 4")
    page.until_text("All was searched")
    page.run("document.querySelector('#rows summary').focus()")
    press_enter(page)
    page.until("it is laid out", "document.querySelector('#rows pre.json').innerText.includes('\\n  \"number\": 15077')")
    page.until_text(HOSTILE)
    if "HEADGATE_PICTURES" in os.environ:
        page.picture(Path(os.environ["HEADGATE_PICTURES"]) / "messages.png")


def set_back(page: Page, broker: BrokerProcess, began_ms: int) -> None:
    """The last quarter of the messages is read again."""
    page.click("Headgate", "a")
    page.until("the group", "[...document.querySelectorAll('table.groups a')].some(one => one.innerText === 'billing')")
    page.click("billing", "table.groups a")
    page.until_text("No active members")
    page.run("document.querySelector('select[name=to]').value = 'time'")
    page.write("input[name=at]", str(began_ms + MESSAGES * 3 // 4 * STEP_MS))
    page.click("Preview", "button")
    page.until_text("5,000 offsets will be read again.")
    page.click("Set these positions", "button")
    page.until_text("The positions are set.")
    assert sorted(read(broker, MESSAGES // 4)) == list(range(MESSAGES * 3 // 4, MESSAGES))


def make_a_topic(page: Page, broker: BrokerProcess) -> None:
    page.click("Headgate", "a")
    page.click("New topic", "a")
    page.write("input[name=name]", "visits")
    page.write("input[name=partitions]", "3")
    page.write("textarea[name=settings]", "retention.ms=60000")
    page.click("Create", "button")
    page.until_text("The topic is created.")
    page.until("its setting", "document.querySelector('table.settings').innerText.includes('60000')")
    assert [one["partitions"] for one in api_as_admin(broker, "/api/topics")["topics"] if one["name"] == "visits"] == [3]


def let_alice_in(page: Page, broker: BrokerProcess) -> None:
    """A user who may look at the cluster and read one topic. A rule too many is taken back."""
    page.click("Access", "a")
    page.write("input[name=name]", "alice")
    page.write("input[name=password]", ALICE_PASSWORD)
    page.click("Create the user", "button")
    page.until_text("The user is created.")
    for operation, resource, name in (("describe", "cluster", "cluster"), ("read,write", "topic", "clicks")):
        page.write("#rules .ask input[name=operation]", operation)
        page.run(f"document.querySelector('select[name=resource]').value = '{resource}'")
        page.write("#rules .ask input[name=name]", name)
        page.click("Add", "button")
        page.until_text("The rules are in force.")
        page.click("alice", "table.users a")
        page.until("her page", "document.querySelector('input[name=principal]').value === 'User:alice'")
    if "HEADGATE_PICTURES" in os.environ:
        page.picture(Path(os.environ["HEADGATE_PICTURES"]) / "access.png")
    page.run("document.querySelector('button[aria-label*=write]').focus()")
    press_enter(page)
    page.until_text("The rule is removed.")
    page.until("two rules", "document.querySelectorAll('table.rules tbody tr').length === 2")
    assert ALICE_PASSWORD not in broker.output()


def press_enter(page: Page) -> None:
    for kind in ("keyDown", "keyUp"):
        page.ask("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")


def api_as_admin(broker: BrokerProcess, path: str) -> Any:
    login = base64.b64encode(f"admin:{ADMIN_PASSWORD}".encode()).decode()
    request = urllib.request.Request(f"http://{HOST}:{broker.http_port}{path}", headers={"Authorization": f"Basic {login}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def try_as_alice(page: Page, broker: BrokerProcess) -> None:
    """She reads messages, and neither makes a topic or a user nor sees the group."""
    page.until("updates", "document.querySelector('#live').dataset.state === 'live'")
    page.click("clicks", "table.topics a")
    page.click("Messages", "a")
    page.until("the newest messages", "document.querySelectorAll('#rows > li').length === 50")
    page.click("Headgate", "a")
    page.click("New topic", "a")
    page.write("input[name=name]", "hers")
    page.click("Create", "button")
    page.until_text("Not allowed")
    page.open(f"http://{HOST}:{broker.http_port}/group?id=billing")
    page.until_text("Not allowed")
    page.click("Access", "a")
    page.write("input[name=name]", "bob")
    page.write("input[name=password]", ALICE_PASSWORD)
    page.click("Create the user", "button")
    page.until_text("Not allowed")
    assert "hers" not in [one["name"] for one in api_as_admin(broker, "/api/topics")["topics"]]
    noted = [line for line in broker.output().splitlines() if "refused" in line and "CreateTopics" in line]
    assert len(noted) == 1 and "User:alice" in noted[0] and "http" in noted[0]


@pytest.mark.chromium
@pytest.mark.timeout(600)
def test_people_act_while_others_do(make_broker: BrokerFactory, tmp_path: Path) -> None:
    """A topic goes, consumers join, brokers are drained and the leader is killed, while a person has the page of it open."""
    brokers = Brokers(make_broker, tmp_path / "store", env=PATIENT)
    brokers.start()
    busy.make_topics(brokers.bootstrap, {"orders": 6, "doomed": 2})
    producer, admin = (kind({"bootstrap.servers": brokers.bootstrap}) for kind in (Producer, AdminClient))
    for number in range(600):
        producer.produce("orders", b"v", b"%d" % number)
    assert producer.flush(60) == 0
    drained, kept = (one for one in brokers.all if one is not brokers.leader())
    with chromium(tmp_path) as page:
        page.open(f"http://{HOST}:{kept.http_port}/topics/doomed/settings")
        page.until_text("Delete the topic")
        admin.delete_topics(["doomed"])["doomed"].result(60)
        page.click("Add partitions", "button")
        page.until_text("Topic does not exist")
        set_back_while_members_join(page, brokers, kept)
        drain(page, brokers, drained)
        drain(page, brokers, brokers.leader())
        reserve_by_hand(page)
        release_a_gate(page, brokers, drained)
        outlive_the_leader(page, brokers, kept)


def set_back_while_members_join(page: Page, brokers: Brokers, broker: BrokerProcess) -> None:
    busy.read_some(brokers.bootstrap, "billing", "orders", 600).close()
    page.open(f"http://{HOST}:{broker.http_port}/group?id=billing")
    page.click("Preview", "button")
    page.until_text("600 offsets will be read again.")
    member = Consumer({"bootstrap.servers": brokers.bootstrap, "group.id": "billing"})
    member.subscribe(["orders"])
    until(lambda: bool(member.poll(0.1) or member.assignment()), "the consumer is a member", PATIENCE_S)
    page.click("Set these positions", "button")
    page.until_text("The group has active members: stop its consumers first")
    member.close()


def drain(page: Page, brokers: Brokers, broker: BrokerProcess) -> None:
    """The broker leads nothing afterwards. Its own page says what it is, and works."""
    number = str(brokers.number(broker))
    page.click("Headgate", "a")
    page.click(f"Broker {number}", "#brokers a")
    page.write("input[name=confirm]", "9")
    page.click("Drain the broker", "button")
    page.until_text("write its number into the field")
    page.open(f"http://{HOST}:{broker.http_port}/broker?id={number}")
    page.write("input[name=confirm]", number)
    page.click("Drain the broker", "button")
    page.until_text("The broker is drained. It has no segments")
    assert ("It still leads the cluster" in page.text()) == (broker is brokers.leader())
    assert {one.broker_id for one in brokers.segments("orders")}.isdisjoint({int(number)})
    assert not page.run("!!document.querySelector('button.danger')")


def reserve_by_hand(page: Page) -> None:
    page.click("Headgate", "a")
    page.click("Reservations", "a")
    page.click("Reserve", "button")
    page.until_text("The reservation is open.")
    page.click("Give back", "button")
    page.until_text("The reservation is given back.")


def release_a_gate(page: Page, brokers: Brokers, broker: BrokerProcess) -> None:
    asyncio.run(busy.PlayedFlood(cluster_of(brokers), "orders", FLOOD, [5] * 6).open())
    page.open(f"http://{HOST}:{broker.http_port}/")
    page.click(FLOOD, "#floods a")
    page.until_text("30 offsets in 6 windows")
    page.write("input[name=confirm]", FLOOD)
    page.click("Release the gate", "button")
    page.until_text("The gate is released")


def outlive_the_leader(page: Page, brokers: Brokers, broker: BrokerProcess) -> None:
    """A page that stays open shows the next leader, and people go on there."""
    page.open(f"http://{HOST}:{broker.http_port}/")
    page.until("updates", "document.querySelector('#live').dataset.state === 'live'")
    gone = brokers.number(brokers.leader())
    brokers.leader().kill()
    leads = "/number (\\d+) leads/.exec(document.querySelector('#head').innerText)"
    page.until("another leader", f"{leads} && {leads}[1] !== '{gone}'")
    page.click("New topic", "a")
    page.write("input[name=name]", "afterwards")
    page.click("Create", "button")
    page.until_text("The topic is created.")
    page.click("Messages", "a")
    page.until_text("The topic has no messages")


def test_a_broker_that_is_cut_off_says_so(make_broker: BrokerFactory, tmp_path: Path, s3_server: S3Server) -> None:
    with Network() as network:
        store = s3_doors(network, s3_server, "page")
        brokers = Brokers(make_broker, store, env=dict(s3_server.environment), network=network, count=2)
        brokers.start()
        busy.make_topics(brokers.bootstrap, {"orders": 2})
        victim = next(one for one in brokers.all if one is not brokers.leader())
        name, other = str(brokers.number(victim)), str(brokers.number(brokers.leader()))
        until(lambda: api(victim, "/api/cluster")["trouble"] == "", "the follower asks the leader", PATIENCE_S)
        seen = api(victim, "/api/cluster")
        assert seen["role"] == "following" and seen["leader_broker_id"] == int(other) and len(seen["brokers"]) == 2
        network.cut((name, other), (name, "store"))
        until(lambda: api(victim, "/api/cluster")["role"] == "looking", "the broker has lost its leader", PATIENCE_S)
        seen = api(victim, "/api/cluster")
        assert seen["trouble"] and [one["state"] for one in seen["brokers"] if one["id"] == int(other)] == ["unknown"]
        assert [one["name"] for one in api(victim, "/api/topics")["topics"]] == ["orders"], "it shows what it knows"
        with urllib.request.urlopen(f"http://{HOST}:{victim.http_port}/", timeout=60) as page:
            html = page.read().decode()
        assert f"Broker {name} is cut off from the cluster's leader." in html and "orders" in html
        network.heal()


def test_requests_that_are_not_meant(make_broker: BrokerFactory) -> None:
    broker = make_broker()
    broker.start()
    url = f"http://{HOST}:{broker.http_port}"
    for path, status, text in (
        ("/api/topics/nosuch", 404, "topic does not exist"),
        ("/api/floods/nosuch", 404, "no flood or gate of this id"),
        ("/topics/%3Cscript%3E", 404, "topic does not exist"),
        ("/nosuch", 404, "Not Found"),
    ):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(url + path, timeout=60)
        with caught.value as answer:
            assert answer.code == status and text in answer.read().decode(), path
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(url + "/", headers={"Host": "evil.example"}), timeout=60)
    with caught.value as answer:
        assert answer.code == 421
    for query in ("page=999999999999", "page=-1&sort=%00", "search=" + "x" * 5000, "page=%D9%A3"):
        assert api(broker, f"/api/topics?{query}")["page"] == 1
