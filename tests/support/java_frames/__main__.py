"""Record the requests of the Java client: `python -m tests.support.java_frames`. Needs Java 17 or newer, and Maven."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from tests.compat.topics import create_topic, topic_id
from tests.support.broker_process import HOST, PATIENCE_S, BrokerProcess
from tests.support.java_frames import FILE
from tests.support.kafka_server import jars
from tests.support.ports import free_port
from tests.support.recorder import Recorder

TOPIC = "recorded"
PER_KIND_MAX = 8
"""Kept requests of one API and version: the client repeats fetches and heartbeats."""


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        port = free_port()
        settings = {"HEADGATE_ADVERTISED_KAFKA_PORT": str(port), "HEADGATE_FETCH_WAIT_MAX_MS": "200"}
        home = Path(place)
        with BrokerProcess(home / "store", home / "broker.log", env=settings) as broker:
            broker.start()
            with Recorder(port, broker.kafka_port) as door:
                create_topic(broker.bootstrap, TOPIC, 2)
                found = topic_id(broker.bootstrap, TOPIC)
                door.frames.clear()  # librdkafka's
                command = ["java", "-cp", f"{jars()}/*", str(FILE.parent / "Client.java"), f"{HOST}:{port}", TOPIC]
                subprocess.run(command, check=True, timeout=PATIENCE_S)
                frames = door.frames
    kept: dict[bytes, list[bytes]] = {}
    for frame in frames:
        of_kind = kept.setdefault(frame[:4], [])
        if len(of_kind) < PER_KIND_MAX:
            of_kind.append(frame)
    lines = [found.hex(), *(frame.hex() for _, of_kind in sorted(kept.items()) for frame in of_kind)]
    FILE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
