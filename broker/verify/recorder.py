"""The history of a run in a directory: all clients write it at once during the run, and the judge reads it.

`run.json` is written when the run begins, `end.json` when it ends. Rows of records stand in binary files per place, in the types
of `history`; `log.jsonl` has all rare events. Only write buffers are in memory.
"""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from headgate.broker.verify.history import (
    OPERATION,
    READ,
    Commit,
    Event,
    Outcome,
    PlaceHistory,
    PositionAnswer,
    ProducerInfo,
    Rows,
    Run,
    Session,
    SessionKind,
    WatermarkAnswer,
)

FORMAT = 1
EVENTS_MAX = 10_000
"""Most events in the log; later ones are only counted, because a client repeats its errors while their cause lasts."""
_OPERATION = struct.Struct("<iiqqqq")
_READ = struct.Struct("<iiqqq")
_LOGGED = {"commit": Commit, "position": PositionAnswer, "watermark": WatermarkAnswer, "event": Event}


class HistoryError(Exception):
    """The directory has no history that can be judged. The message gives the reason."""


class Recorder:
    """Writes a history. Its methods may be called from any thread.

    Raises OSError if the directory cannot be written; the run cannot continue then.
    """

    def __init__(self, directory: Path, run: Run) -> None:
        self.directory, self.run = directory, run
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise HistoryError(f"the directory for the history is not empty. directory=`{directory}`")
        self._began_ns = time.monotonic_ns()
        self._lock = threading.Lock()
        self._sessions = 0
        self._producers = 0
        self.events = 0
        head = {
            "format": FORMAT,
            "run": run.run,
            "began_unix_ms": run.began_unix_ms,
            "endpoint": run.endpoint,
            "places": run.places,
        }
        (directory / "run.json").write_text(json.dumps(head))
        self._log = (directory / "log.jsonl").open("w")
        self._operations = [_rows(directory, "operations", place).open("wb") for place in range(len(run.places))]
        self._reads = [_rows(directory, "reads", place).open("wb") for place in range(len(run.places))]

    def now_us(self) -> int:
        return (time.monotonic_ns() - self._began_ns) // 1000

    def operation(
        self, place: int, producer: int, sequence: int, outcome: Outcome, offset: int, invoked_us: int, ended_us: int
    ) -> None:
        with self._lock:
            self._operations[place].write(_OPERATION.pack(producer, outcome, sequence, offset, invoked_us, ended_us))

    def reads(self, place: int, rows: Iterable[tuple[int, int, int, int, int]]) -> None:
        """Rows of (session, producer, offset, sequence, time_us)."""
        data = b"".join(_READ.pack(*row) for row in rows)
        with self._lock:
            self._reads[place].write(data)

    def producer(self, *, idempotent: bool) -> int:
        """The number of a new producer."""
        with self._lock:
            self._producers += 1
            number = self._producers - 1
        self._line("producer", asdict(ProducerInfo(number=number, idempotent=idempotent)))
        return number

    def session(self, kind: SessionKind, name: str, group: str = "") -> Session:
        with self._lock:
            self._sessions += 1
            session = Session(number=self._sessions - 1, kind=kind, name=name, group=group)
        self._line("session", asdict(session))
        return session

    def given_up(self, session: Session) -> None:
        """Restart a final read: the messages of the first try count as reads, but not as the final log."""
        self._line("session", {**asdict(session), "kind": SessionKind.LIVE})

    def commit(self, commit: Commit) -> None:
        self._line("commit", asdict(commit))

    def position(self, answer: PositionAnswer) -> None:
        self._line("position", asdict(answer))

    def watermark(self, answer: WatermarkAnswer) -> None:
        self._line("watermark", asdict(answer))

    def event(self, client: str, text: str) -> None:
        self.events += 1
        if self.events <= EVENTS_MAX:
            self._line("event", asdict(Event(time_us=self.now_us(), client=client, text=text)))

    def _line(self, what: str, data: Mapping[str, Any]) -> None:
        line = json.dumps({"is": what, **data})
        with self._lock:
            self._log.write(line + "\n")

    def flush(self) -> None:
        with self._lock:
            for file in (self._log, *self._operations, *self._reads):
                file.flush()

    def end(self, writing_us: tuple[int, int], final_read: Mapping[int, tuple[int, int, bool]]) -> None:
        """Close the history. From now on it can be judged."""
        self.flush()
        data = {
            "writing_us": writing_us,
            "final_read": {str(place): read for place, read in final_read.items()},
            "events": self.events,
        }
        (self.directory / "end.json").write_text(json.dumps(data))
        with self._lock:
            files: list[Any] = [self._log, *self._operations, *self._reads]
            for file in files:
                file.close()
            # Clients that did not end in time go on writing; the judge ignores those rows.
            self._log = open("/dev/null", "w")  # noqa: SIM115
            sink: BinaryIO = open("/dev/null", "wb")  # noqa: SIM115
            self._operations = [sink for _ in self._operations]  # type: ignore[misc]
            self._reads = [sink for _ in self._reads]  # type: ignore[misc]


def _rows(directory: Path, what: str, place: int) -> Path:
    return directory / f"{what}-{place}.rows"


class Recorded:
    """A written history. Raises HistoryError if the directory has none, or if the run did not end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            head = json.loads((directory / "run.json").read_text())
            end = json.loads((directory / "end.json").read_text())
        except FileNotFoundError as error:
            what = "the run did not end" if error.filename.endswith("end.json") else "there is no history"
            raise HistoryError(f"{what}. directory=`{directory}`") from error
        if head.get("format") != FORMAT:
            raise HistoryError(f"the history has another format. directory=`{directory}` format=`{head.get('format')}`")
        producers: dict[int, ProducerInfo] = {}
        sessions: dict[int, Session] = {}
        self.commits: list[Commit] = []
        self.positions: list[PositionAnswer] = []
        self.watermarks: list[WatermarkAnswer] = []
        self.events: list[Event] = []
        self.event_count: int = end["events"]
        lists: dict[str, list[Any]] = {
            "commit": self.commits,
            "position": self.positions,
            "watermark": self.watermarks,
            "event": self.events,
        }
        for what, data in self._lines():
            if what == "producer":
                producers[data["number"]] = ProducerInfo(**data)
            elif what == "session":
                sessions[data["number"]] = Session(**{**data, "kind": SessionKind(data["kind"])})
            else:
                lists[what].append(_LOGGED[what](**data))
        self.run = Run(
            run=head["run"],
            began_unix_ms=head["began_unix_ms"],
            endpoint=head["endpoint"],
            places=[(topic, partition) for topic, partition in head["places"]],
            producers=producers,
            sessions=sessions,
            writing_began_us=end["writing_us"][0],
            writing_ended_us=end["writing_us"][1],
            final_read={int(place): (low, high, done) for place, (low, high, done) in end["final_read"].items()},
        )

    def _lines(self) -> Iterator[tuple[str, dict[str, Any]]]:
        with (self.directory / "log.jsonl").open() as log:
            for line in log:
                data = json.loads(line)
                if "outcome" in data:
                    data["outcome"] = Outcome(data["outcome"])
                yield data.pop("is"), data

    def place(self, place: int) -> PlaceHistory:
        low, high, done = self.run.final_read.get(place, (None, None, False))
        return PlaceHistory(
            place=place,
            operations=self._load("operations", place, OPERATION),
            reads=self._load("reads", place, READ),
            low=low,
            high=high,
            is_complete=done,
        )

    def _load(self, what: str, place: int, kind: np.dtype[Any]) -> Rows:
        return np.fromfile(_rows(self.directory, what, place), dtype=kind)
