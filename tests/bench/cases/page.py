"""The page's messages of a topic with 10 M of them: the time of a first page, the time to find one by its key, and what a live
producer to the same topic feels of ten people who look at messages.

Ten threads do what ten browsers do (`messages.js`), each on a connection of its own: a live view asks again when the broker says, a
search goes on 50 ms after each answer. Turns of ten seconds with and without these people follow each other, for a minute each:
what else the machine does disturbs both turns. No process has a core of its own.
"""

from __future__ import annotations

import contextlib
import html
import re
import statistics
import threading
import time
from collections.abc import Iterable, Iterator
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from tests.bench.brokers import Broker
from tests.bench.cases.adopted import FIRST_US, Shape, make_source, run_flood
from tests.bench.clients import live
from tests.bench.harness import LOCAL_ALWAYS, Bench, Case, remove_tree
from tests.bench.native import BenchError
from tests.bench.report import Goal, Row

ROWS = 10_000_000
WAYS = ("link", "rewrite")
VIEWS = 10
PAGE_MS, LIVE_RATIO = 300.0, 1.2
"""Goals."""
LIVE_PAUSE_S, SEARCH_PAUSE_S = 1.0, 0.05
WARM_S = 3.0
NEXT = re.compile(r'rel="next" href="\?([^"]+)"')


def _columns(at: Any) -> dict[str, Any]:
    return {"user": [f"user-{row}" for row in at.tolist()], "payload": [b"%090d" % row for row in at.tolist()]}


def _answer(there: Broker, topic: str, query: str) -> str:
    with urlopen(f"http://127.0.0.1:{there.http_port}/topics/{topic}/messages?{query}", timeout=60) as answer:
        text: str = answer.read().decode()
    return text


def _timed(there: Broker, topic: str, **query: object) -> float:
    """Milliseconds of one page. Raises BenchError if it is not full."""
    began = time.perf_counter()
    text = _answer(there, topic, urlencode(query))
    if text.count("<details><summary>") != 50:
        raise BenchError(f"the page is not full. query=`{query}`")
    return (time.perf_counter() - began) * 1000


def _searched(there: Broker, topic: str, key: str) -> tuple[float, int]:
    """Seconds until a key is found, and number of answers."""
    began, query, answers = time.perf_counter(), urlencode({"from": "oldest", "key": key}), 0
    while True:
        text, answers = _answer(there, topic, query), answers + 1
        if 'class="where"' in text:
            return time.perf_counter() - began, answers
        found = NEXT.search(text)
        if found is None:
            raise BenchError(f"the key is not found. key=`{key}`")
        query = html.unescape(found[1])
        time.sleep(SEARCH_PAUSE_S)


@contextlib.contextmanager
def _watching(there: Broker, topic: str, first: str, pause_s: float) -> Iterator[None]:
    """People who look at messages, each in a thread. Raises BenchError if one of them got no page."""
    over = threading.Event()
    answers = [0] * VIEWS

    def look(number: int) -> None:
        query, connection = first, HTTPConnection("127.0.0.1", there.http_port, timeout=60)
        pause = pause_s * number / VIEWS  # people do not begin at the same time
        while not over.wait(pause):
            is_poll = "places=" in query and "from=live" in query
            connection.request("GET", f"/topics/{topic}/messages?{query}", headers={"headgate-poll": "1"} if is_poll else {})
            answer = connection.getresponse()
            found = NEXT.search(answer.read().decode())
            if answer.status == 200:
                answers[number] += 1
            if answer.status != 204:
                query = first if found is None else html.unescape(found[1])
            pause = float(answer.headers.get("headgate-poll", pause_s * 1000)) / 1000
        connection.close()

    people = [threading.Thread(target=look, args=(number,)) for number in range(VIEWS)]
    for person in people:
        person.start()
    try:
        yield
    finally:
        over.set()
        for person in people:
            person.join()
    if min(answers) < 2:
        raise BenchError(f"a person got no page. answers=`{answers}`")


def _acks(bench: Bench, there: Broker, topic: str) -> dict[str, float]:
    with live(there.kafka_port, topic, None) as producer:
        time.sleep(WARM_S)
        producer.begin()
        time.sleep(bench.pick(4, 10))
        return producer.end()


def _beside(bench: Bench, there: Broker, topic: str, case: str, first: str, pause_s: float) -> Row:
    beside, quiet = [], [_acks(bench, there, topic)]
    for _ in range(bench.pick(1, 5)):
        with _watching(there, topic, first, pause_s):
            beside.append(_acks(bench, there, topic))
        quiet.append(_acks(bench, there, topic))
    ratios = [
        during["p99_ms"] * 2 / (before["p99_ms"] + after["p99_ms"])
        for before, during, after in zip(quiet, beside, quiet[1:], strict=False)
    ]
    return Row(
        group="page", case=case, measured=_text(beside), ceiling=f"quiet {_text(quiet)}", ratio=statistics.median(ratios),
        low=min(ratios), high=max(ratios), unit="x", goal=LIVE_RATIO, side=Goal.AT_MOST,
    )  # fmt: skip


def _text(runs: list[dict[str, float]]) -> str:
    p50_ms, p99_ms = (statistics.median(run[name] for run in runs) for name in ("p50_ms", "p99_ms"))
    return f"p50 {p50_ms:.2f}, p99 {p99_ms:.2f} ms"


def _run(bench: Bench) -> Iterable[Row]:
    place = bench.fresh_directory("page")
    rows = bench.pick(ROWS // 10, ROWS)
    try:
        make_source(place / "source", Shape(_columns, rows, 90, 0, 0, 0, 0), rows)
        with bench.broker(LOCAL_ALWAYS, settings={"history.lanes": "1", "history.lane_bytes": str(1 << 20)}) as there:
            for way in WAYS:
                run_flood(there, place / "source", way, way, "payload")
                middle = {"from": "time", "at": FIRST_US // 1000 + rows // 2}
                for what, query in (("oldest", {"from": "oldest"}), ("newest", {}), ("at a time", middle)):
                    first, *again = [_timed(there, way, **query) for _ in range(bench.pick(5, 20))]
                    yield Row(
                        group="page", case=f"{what} of {rows:,}, {way}: milliseconds of a page, the first time", ratio=first,
                        measured=f"again {statistics.median(again):.0f} ms", unit="ms", goal=PAGE_MS, side=Goal.AT_MOST,
                    )  # fmt: skip
                seconds, answers = _searched(there, way, f"user-{rows - 1}")
                yield Row(
                    group="page", case=f"the newest key of {rows:,}, looked for from the oldest, {way}: seconds", ratio=seconds,
                    unit="s", measured=f"{answers} answers",
                )  # fmt: skip
            yield _beside(bench, there, "link", "ten live views", "from=live", LIVE_PAUSE_S)
            yield _beside(bench, there, "link", "ten searches, through a lane", "from=oldest&key=nosuch", SEARCH_PAUSE_S)
    finally:
        remove_tree(place)


CASES = [Case("page", "messages of 10 M", _run, unit="x")]
