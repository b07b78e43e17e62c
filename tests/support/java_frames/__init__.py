"""Requests of the Java client (kafka-clients), recorded once in `frames.txt`, so that a test needs no Java.

`python -m tests.support.java_frames` records them again with `Client.java` behind `tests/support/recorder.py`. The first line
of the file is the id of the topic `recorded`; each other line is one request without its length prefix, all in hexadecimal.
"""

from __future__ import annotations

import struct
from pathlib import Path

FILE = Path(__file__).parent / "frames.txt"


def recorded(topic_id: bytes) -> dict[int, list[bytes]]:
    """The recorded requests by API key.

    Args:
        topic_id: the 16 bytes that replace the id that the topic `recorded` had during the recording.
    """
    first, *lines = FILE.read_text().splitlines()
    found: dict[int, list[bytes]] = {}
    for line in lines:
        frame = bytes.fromhex(line).replace(bytes.fromhex(first), topic_id)
        found.setdefault(struct.unpack_from(">h", frame)[0], []).append(frame)
    return found
