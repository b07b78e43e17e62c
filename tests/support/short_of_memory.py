"""A broker that runs out of memory in one function: `python -m tests.support.short_of_memory PLACE FILE broker ...`.

Once FILE exists, the function at PLACE raises MemoryError at each call.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NoReturn

from headgate.broker.cli.main import main
from headgate.broker.engine.write.path import WritePath
from headgate.broker.engine.write.wal_group import GroupWriter
from headgate.broker.log.buffers import BufferPool
from headgate.broker.server.grpc.admin_service import AdminService
from headgate.broker.server.kafka import fetch
from headgate.broker.server.kafka.frames import Frames
from headgate.broker.server.kafka.listener import KafkaServer
from headgate.broker.server.kafka.pending_requests import PendingRequests
from headgate.broker.server.kafka.session import Session
from headgate.broker.store.local_files import LocalFiles

PLACES: dict[str, tuple[Any, str]] = {
    "frame": (BufferPool, "take"),
    "growing": (Frames, "_extend"),
    "fetch": (fetch, "collect"),
    "append": (WritePath, "append_parsed"),
    "wal": (GroupWriter, "write"),
    "timer": (KafkaServer, "_on_sweep"),
    "cold": (PendingRequests, "answer"),
    "store": (LocalFiles, "put_if_absent"),
    "flush": (Session, "end_of_produce"),
    "grpc": (AdminService, "status"),
}


def starve(place: str, file: Path) -> None:
    """Make the function at a place raise MemoryError once the file exists."""
    owner, name = PLACES[place]
    right = getattr(owner, name)

    def call(*given: Any, **named: Any) -> Any:
        return _fail() if file.exists() else right(*given, **named)

    setattr(owner, name, call)


def _fail() -> NoReturn:
    raise MemoryError


if __name__ == "__main__":
    starve(sys.argv[1], Path(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))
