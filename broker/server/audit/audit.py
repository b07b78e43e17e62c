"""The audit log: one JSON line for each administrative act, each refusal and each filled gate.

A line says who did what to what, from where, and how it ended. It never holds a value of a setting, a password, a verifier, a token
or a record. Lines go to `audit_file`, or without one to the broker's log, and also to the topic `audit_topic` if there is one.

Acts are never left out. Refusals are bounded, because any client can cause them: REFUSALS_MAX a second, and the number of the
others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

REFUSALS_MAX = 50
"""Lines about refusals in a second: a client that repeats a refused request must not fill the disk."""
TARGETS_MAX = 20
"""Names in one line."""
CHARS_MAX = 500
"""Characters of one name or reason."""

Sink = Callable[[dict[str, object], str], None]
"""Takes a line: its fields, and their JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who acts: principal, address, the door that it came through, and the client id, if it has one."""

    who: str
    host: str
    door: str
    client_id: str = ""


class Audit:
    """Writes the lines of one broker.

    Args:
        now_ms: the wall clock. sink: takes the lines.
    """

    def __init__(self, broker_id: int, now_ms: Callable[[], int], sink: Sink) -> None:
        self._broker_id = broker_id
        self._now_ms = now_ms
        self.sinks: list[Sink] = [sink]
        self._second = 0
        self._refusals = 0
        """Refusals in this second."""
        self.acts = 0
        self.refusals = 0
        """Lines, and refusals with those that were only counted, since the start."""

    def did(
        self,
        act: str,
        caller: Caller,
        targets: Sequence[str],
        *,
        error: str = "",
        refused: bool = False,
        details: dict[str, object] | None = None,
    ) -> None:
        """Note an administrative act, or the attempt. `error`: why it failed, or was refused; empty: it is done."""
        if refused:
            self.refused(act, caller, targets, error)
            return
        self.acts += 1
        self._write("failed" if error else "done", act, caller, targets, error, details or {})

    def refused(self, act: str, caller: Caller, targets: Sequence[str], reason: str) -> None:
        """Note a refusal: of a login, or of something that the client may not do."""
        second = self._now_ms() // 1000
        if second != self._second:
            left_out, self._second, self._refusals = self._refusals - REFUSALS_MAX, second, 0
            if left_out > 0:
                self._emit({"outcome": "refused", "left_out": left_out})
        self._refusals += 1
        self.refusals += 1
        if self._refusals <= REFUSALS_MAX:
            self._write("refused", act, caller, targets, reason, {})

    def _write(
        self, outcome: str, act: str, caller: Caller, targets: Sequence[str], reason: str, details: dict[str, object]
    ) -> None:
        row: dict[str, object] = {
            "outcome": outcome,
            "act": act,
            "who": _cut(caller.who),
            "from": caller.host,
            "door": caller.door,
            "targets": [_cut(one) for one in targets[:TARGETS_MAX]],
        }
        if len(targets) > TARGETS_MAX:
            row["targets_left_out"] = len(targets) - TARGETS_MAX
        if caller.client_id:
            row["client_id"] = _cut(caller.client_id)
        if reason:
            row["reason"] = _cut(reason)
        self._emit(row | details)

    def _emit(self, row: dict[str, object]) -> None:
        at = datetime.fromtimestamp(self._now_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        row = {"time": at.replace("+00:00", "Z"), "broker": self._broker_id, **row}
        line = json.dumps(row)
        for sink in self.sinks:
            sink(row, line)


def _cut(text: str) -> str:
    return text if len(text) <= CHARS_MAX else text[:CHARS_MAX] + "..."
