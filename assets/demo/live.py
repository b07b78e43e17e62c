"""The live producer, a process of its own: flights at a steady rate with librdkafka, and the time of each ack.

``python -m headgate.assets.demo.live BOOTSTRAP TOPIC RATE FLIGHTS OUT`` runs until SIGTERM. OUT gets a line per acked record:
the time of sending (Unix ms) and the time to the ack (ms).
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from pathlib import Path
from typing import Any

from headgate.assets.demo.flights import live

FLUSH_S = 600.0
"""Longest wait for the last acks, in seconds: minutes on a starved machine."""


def main(bootstrap: str, topic: str, rate: float, flights: Path, out: Path) -> int:
    """Returns the exit code: 1 when librdkafka gave up a record."""
    from confluent_kafka import Producer

    stopping = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    quiet = logging.Logger("live")
    quiet.addHandler(logging.NullHandler())
    # Pause before librdkafka asks the new lead of a partition; its default is 100 ms.
    settings = {
        "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0, "retry.backoff.ms": 10,
        "message.timeout.ms": int(FLUSH_S * 1000),
    }  # fmt: skip
    producer = Producer(settings, logger=quiet)
    failed = 0
    with out.open("w", buffering=1 << 16) as file:

        def delivered(error: object, message: Any) -> None:
            nonlocal failed
            if error is not None:
                failed += 1
                return
            latency_ms = message.latency() * 1000
            file.write(f"{time.time() * 1000 - latency_ms:.1f} {latency_ms:.3f}\n")

        began = time.monotonic()
        for number, (key, line) in enumerate(live(flights)):
            due = began + number / rate
            while not stopping and (wait_s := due - time.monotonic()) > 0:
                # A wait under a millisecond returns at once, and a spinning client would take the core from the brokers.
                producer.poll(min(max(wait_s, 0.001), 0.05))
            if stopping:
                break
            value = f'{{"live": {number}, {line[1:]}'
            while True:
                try:
                    producer.produce(topic, key=key, value=value, on_delivery=delivered)
                    break
                except BufferError:  # librdkafka's queue is full: the brokers are slower than the flights
                    producer.poll(0.1)
            producer.poll(0)
        left = producer.flush(FLUSH_S)
    sys.stdout.write(json.dumps({"sent": number, "failed": failed + left}) + "\n")
    return 1 if failed + left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), Path(sys.argv[4]), Path(sys.argv[5])))
