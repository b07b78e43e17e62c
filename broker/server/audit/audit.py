"""The audit log: one JSON line for each administrative act, each refusal and each filled gate.

A line says who did what to what, from where, and how it ended. It never holds a value of a setting, a password, a verifier, a token
or a record. Lines go to `audit_file`, or without one to the broker's log.

Acts are never left out. Refusals are bounded, because any client can cause them: REFUSALS_MAX a second for each user, and as many
for all clients without a login together; then the number of the others. So a stranger's flood hides no user's refusals.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from headgate.broker.cluster.acl import ANONYMOUS

REFUSALS_MAX = 50
"""Lines about refusals of one user in a second: a client that repeats a refused request must not fill the disk."""
USERS_MAX = 50
"""Users with a bound of their own in a second; further ones share one."""
STRANGERS, OTHERS = "", "other users"
"""Who shares a bound: clients that are not known, and the users beyond USERS_MAX."""
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
        self._sink = sink
        self._second = 0
        self._refusals: dict[str, int] = {STRANGERS: 0}
        """Refusals in this second, by user or by who shares a bound."""
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
        self.tell_left_out()
        self.acts += 1
        self._write("failed" if error else "done", act, caller, targets, error, details or {})

    def refused(self, act: str, caller: Caller, targets: Sequence[str], reason: str) -> None:
        """Note a refusal: of a login, or of something that the client may not do."""
        self.tell_left_out()
        who = STRANGERS if caller.who in ("", ANONYMOUS) else caller.who
        if who not in self._refusals and len(self._refusals) >= USERS_MAX:
            who = OTHERS
        count = self._refusals[who] = self._refusals.get(who, 0) + 1
        self.refusals += 1
        if count <= REFUSALS_MAX:
            self._write("refused", act, caller, targets, reason, {})

    def tell_left_out(self) -> None:
        """Write the numbers of refusals without a line, once their second is over. The Kafka listener calls it in every sweep."""
        second = self._now_ms() // 1000
        if second == self._second:
            return
        self._second, counted = second, self._refusals
        self._refusals = {STRANGERS: 0}
        for who, count in counted.items():
            if count > REFUSALS_MAX:
                self._emit({"outcome": "refused", "who": _cut(who), "left_out": count - REFUSALS_MAX})

    def _write(
        self, outcome: str, act: str, caller: Caller, targets: Sequence[str], reason: str, details: dict[str, object]
    ) -> None:
        row: dict[str, object] = {
            "outcome": outcome,
            "act": act,
            "who": _cut(caller.who),
            "from": caller.host,
            "door": caller.door,
            "targets": [_cut(target) for target in targets[:TARGETS_MAX]],
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
        self._sink(row, json.dumps(row))


def _cut(text: str) -> str:
    return text if len(text) <= CHARS_MAX else text[:CHARS_MAX] + "..."
