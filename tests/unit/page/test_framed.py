"""Messages in a schema registry's frame at the page.

Runs: a broker in memory behind the real application, and a registry of `tests/support/registry.py`. A mismatch means that a person
sees bytes where JSON could stand, that a registry which fails takes messages away, or that a page waits for it again and again.
"""

from __future__ import annotations

import html
import json
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from headgate.broker.log.records import Record, encode_batch
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import InvalidError
from headgate.broker.schemas import registry as client
from headgate.broker.server.http.hands import framed
from tests.support import registry as support
from tests.support.registry import FakeRegistry
from tests.unit.page.world import World

SCHEMA = {"type": "record", "name": "Click", "fields": [{"name": "user", "type": "string"}, {"name": "n", "type": "long"}]}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    monkeypatch.setattr(client, "PAUSE_S", 0.01)
    with support.registry() as made:
        yield made


@pytest_asyncio.fixture
async def world(fake: FakeRegistry) -> AsyncIterator[World]:
    made = World(schema_registry=fake.url)
    await made.start()
    await made.engine.create_topic("t", 1, {})
    number = fake.register("t-value", json.dumps(SCHEMA))
    values = [frame(number, b"\x06ann\x0e"), frame(number, b"\x06ann"), b"plain", frame(99, b"x"), frame(number, b"\x0a<b>&y\x02")]
    await made.fill("t", 0, encode_batch([Record(0, 1000, b"k", value) for value in values]))
    yield made
    await made.close()


def frame(number: int, data: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + data


async def test_frames_are_decoded_and_what_does_not_fit_stays(world: World, fake: FakeRegistry) -> None:
    browser = world.browser()
    page = (await browser.get("/topics/t/messages", **{"from": "oldest"})).text
    shown = html.unescape(page)
    assert '"user": "ann"' in shown and '"n": 7' in shown and "plain" in shown
    assert "<b>&y" not in page and '"user": "<b>&y"' in shown, "a value is text, whatever it has"
    assert "00 00 00 00 63 78" in shown, "a schema that is not there"
    assert shown.count("00 00 00 00 01 06 61 6e 6e") == 2, "a value that claims a schema and does not fit, in hex and before it"
    lines = (await browser.get("/topics/t/messages.jsonl", **{"from": "oldest"})).text.splitlines()
    assert json.loads(json.loads(lines[0])["value"]) == {"user": "ann", "n": 7} and len(lines) == 5
    asked = len(fake.asked)
    await browser.get("/topics/t/messages", **{"from": "oldest"})
    assert len(fake.asked) == asked, "a schema is fetched once"


async def test_a_registry_that_fails_takes_no_message_away(world: World, fake: FakeRegistry) -> None:
    browser, fake.broken = world.browser(), 10**6
    for _ in range(2):
        answer = await browser.get("/topics/t/messages", **{"from": "oldest"})
        assert answer.status == 200 and "plain" in answer.text and "the schema registry cannot be asked" in answer.text
    asked = len(fake.asked)
    lines = (await browser.get("/topics/t/messages.jsonl", **{"from": "oldest"})).text.splitlines()
    assert len(lines) == 6 and "cannot be asked" in lines[0]
    assert len(fake.asked) == asked, "it rests"


async def test_a_registry_that_is_slow_holds_no_page(world: World, fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framed, "WAIT_S", 0.0)
    answer = await world.browser().get("/topics/t/messages", **{"from": "oldest"})
    assert answer.status == 200 and "did not answer within 0 s" in html.unescape(answer.text)


@pytest.mark.parametrize("url", ["registry:8081", "ftp://registry", "http://", "http://alice:secret@registry:8081/path"])
def test_a_setting_that_names_no_registry_or_shows_a_login_is_refused(url: str) -> None:
    """Settings are shown, and are arguments of the processes that a broker starts."""
    with pytest.raises(InvalidError, match="HEADGATE_REGISTRY_LOGIN") as refused:
        Settings.from_values({"schema_registry": url})
    assert "secret" not in str(refused.value) and "alice" not in str(refused.value)
