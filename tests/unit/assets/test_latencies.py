"""The p99 of producers during a flood, from what brokers say on /metrics.

Compared: the quantile with that of the observations themselves, within a bucket; brokers that come, go, and cannot be reached. A
mismatch means that Dagster shows a latency that no producer had, or none.
"""

from __future__ import annotations

from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from hypothesis import given
from hypothesis import strategies as st

from headgate.assets.latencies import Latencies, quantile, scrape
from headgate.broker.client.control import Member
from headgate.broker.runtime.metrics import LATENCY_BUCKETS_S, Histogram, Metrics

INF = float("inf")


def member(incarnation_id: str, http_port: int = 1) -> Member:
    return Member(
        broker_id=1, incarnation_id=incarnation_id, host="127.0.0.1", kafka_port=0, grpc_port=0, http_port=http_port, rack="",
        cpu_share=0.0, memory_bytes=0, connections=0, draining=False, trouble="",
    )  # fmt: skip


@given(st.lists(st.floats(0.0, 9.0), min_size=1, max_size=300))
def test_a_quantile_lies_in_the_bucket_of_the_observation(values: list[float]) -> None:
    histogram = Histogram(LATENCY_BUCKETS_S)
    for value in values:
        histogram.observe(value)
    exact = sorted(values)[-(-len(values) * 99 // 100) - 1]
    bounds = [0.0, *LATENCY_BUCKETS_S]
    high = min(bound for bound in bounds[1:] if bound >= exact)
    found = quantile({float(bound): count for bound, count in histogram.cumulative()}, 0.99)
    assert found is not None and bounds[bounds.index(high) - 1] <= found <= high * 1.000001


def test_what_has_no_quantile() -> None:
    assert quantile({}, 0.99) is None and quantile({0.1: 0, INF: 0}, 0.99) is None
    assert quantile({0.1: 0, INF: 5}, 0.99) == 0.1, "slower than the largest bound"


def test_only_the_growth_counts() -> None:
    """Of three brokers: one that is there all the time, one that comes and goes, and one whose port is closed."""
    answers: dict[str, list[Mapping[float, float] | None]] = {
        "stays": [{0.001: 0, 0.1: 1000, INF: 1000}, {0.001: 99, 0.1: 1099, INF: 1099}],
        "comes": [{0.001: 0, 0.1: 0, INF: 0}, {0.001: 0, 0.1: 1, INF: 1}],
        "closed": [None],
    }
    latencies = Latencies(lambda one: answers[one.incarnation_id].pop(0))
    assert latencies.p99_ms() is None
    latencies.look([member("stays"), member("closed")])
    assert latencies.p99_ms() is None, "no producer wrote since"
    latencies.look([member("comes"), member("closed"), member("no page", http_port=0)])
    latencies.look([member("comes"), member("closed")])
    latencies.look([member("stays"), member("closed")])
    assert latencies.p99_ms() == 1.0, "99 of 100 were acked within a millisecond"
    assert answers == {"stays": [], "comes": [], "closed": []}


def test_the_text_of_a_broker() -> None:
    metrics, histogram = Metrics(), Histogram([0.5, 1.0])
    metrics.histogram("headgate_kafka_produce_seconds", "acks", histogram)
    histogram.observe(0.7)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(metrics.render())

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        found = scrape(member("one", server.server_port))
        server.shutdown()
        thread.join()
    assert found == {0.5: 0.0, 1.0: 1.0, INF: 1.0}
    assert scrape(member("one", server.server_port)) is None, "nothing listens there any more"
