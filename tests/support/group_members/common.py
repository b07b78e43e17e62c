"""Common code of the member scripts: settings in, events out, and the end when stdin closes."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any


def settings() -> dict[str, Any]:
    """bootstrap, group, topic, instance (or null), assignor, session_ms."""
    given: dict[str, Any] = json.loads(sys.argv[1])
    return given


def tell(event: str, **fields: object) -> None:
    line = json.dumps({"event": event, "at": time.monotonic(), **fields})
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def until_stdin_closes() -> threading.Event:
    """Set when the test wants this member to leave."""
    stop = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=watch, daemon=True).start()
    return stop
