"""Which brokers of a local fleet run: start, drain and start again. Pure; time is an argument.

Theory of operation. A fleet has *slots*, numbered from 0; a slot is one broker process after another at one place::

    (none) --Start--> starting --served--> serving --Drain--> draining --ended--> (none)
                          |                    |
                          +------- ended ------+--> waiting --its pause is over: Start--> starting

The lowest slots stay, because clients know the first addresses. A draining slot no longer counts: when more brokers are
requested meanwhile, another slot is started at once. Pauses double while a broker dies again and again; after a broker that
served they are shorter than the time that it served, because its clients wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Phase: TypeAlias = Literal["starting", "serving", "draining", "waiting"]

PAUSE_MS_MIN = 100
PAUSE_MS_MAX = 10_000
STABLE_MS = 10_000
"""Ms of service after which a broker starts with the shortest pause again."""
SERVED_MS = 1_000
"""Ms of service that make a start worthwhile. Such a broker starts again after `1 / SERVED_PARTS` of its service time at the
latest. A broker that dies earlier cost more in starts than it was of use."""
SERVED_PARTS = 2


@dataclass(frozen=True, slots=True)
class Start:
    """Run a broker in this slot. `again`: an earlier one died here."""

    slot: int
    again: bool = False


@dataclass(frozen=True, slots=True)
class Drain:
    """Make the broker of this slot hand over its segments, and end."""

    slot: int


Action: TypeAlias = Start | Drain


@dataclass(slots=True)
class Slot:
    """`since_ms`: start of its phase. `failures`: number of deaths since it was last stable. `retry_ms`: end of the pause."""

    phase: Phase
    since_ms: int
    failures: int = 0
    retry_ms: int = 0


class Fleet:
    """The slots of a fleet, and the actions to start and drain them.

    Args:
        brokers_min: minimum, whatever is requested, until `stop`.
        brokers_max: maximum.
    """

    def __init__(self, brokers_min: int, brokers_max: int) -> None:
        assert 1 <= brokers_min <= brokers_max
        self._min, self._max = brokers_min, brokers_max
        self._wanted = brokers_min
        self._stopping = False
        self.slots: dict[int, Slot] = {}
        """All and only the slots that run, or will run again."""

    @property
    def wanted(self) -> int:
        """The number of brokers that should run."""
        return self._wanted

    @property
    def serving(self) -> list[int]:
        """Slots with a broker that serves and is not draining, lowest first."""
        return sorted(number for number, slot in self.slots.items() if slot.phase == "serving")

    def want(self, brokers: int) -> None:
        """Set the requested number."""
        self._wanted = min(max(brokers, self._min), self._max)

    def stop(self) -> None:
        """Let all brokers end: all hand over to one, which ends last."""
        self._stopping = True

    def served(self, number: int, now_ms: int) -> None:
        """Called when a started broker serves."""
        slot = self.slots[number]
        if slot.phase == "starting":
            slot.phase, slot.since_ms = "serving", now_ms

    def ended(self, number: int, now_ms: int) -> int | None:
        """Called when a broker's process has ended. Returns the pause in ms before it starts again; None if it was draining."""
        slot = self.slots[number]
        if slot.phase == "draining":
            del self.slots[number]
            return None
        served_ms = now_ms - slot.since_ms if slot.phase == "serving" else 0
        if served_ms >= STABLE_MS:
            slot.failures = 0
        pause_ms: int = min(PAUSE_MS_MIN << min(slot.failures, 30), PAUSE_MS_MAX)
        if served_ms >= SERVED_MS:
            pause_ms = min(pause_ms, served_ms // SERVED_PARTS)
        slot.failures += 1
        slot.phase, slot.since_ms, slot.retry_ms = "waiting", now_ms, now_ms + pause_ms
        return pause_ms

    def decide(self, now_ms: int) -> list[Action]:
        """The actions for now. Each action is returned once, and counts as begun."""
        staying = sorted(number for number, slot in self.slots.items() if slot.phase != "draining")
        if self._stopping:
            # Two draining brokers could only hand over to each other, and would wait for each other. So one serving broker stays.
            last = self.serving[:1]
            actions = self._drain([number for number in staying if number not in last], now_ms)
            return actions or (self._drain(last, now_ms) if len(self.slots) == 1 else [])
        actions = self._drain(staying[self._wanted :], now_ms)
        for number in staying[: self._wanted]:
            slot = self.slots[number]
            if slot.phase == "waiting" and slot.retry_ms <= now_ms:
                slot.phase, slot.since_ms = "starting", now_ms
                actions.append(Start(number, again=True))
        number = 0
        for _ in range(self._wanted - len(staying)):
            while number in self.slots:
                number += 1
            self.slots[number] = Slot("starting", now_ms)
            actions.append(Start(number))
        return actions

    def _drain(self, numbers: list[int], now_ms: int) -> list[Action]:
        actions: list[Action] = []
        for number in numbers:
            slot = self.slots[number]
            if slot.phase == "waiting":
                del self.slots[number]
            else:
                slot.phase, slot.since_ms = "draining", now_ms
                actions.append(Drain(number))
        return actions

    def next_ms(self) -> int | None:
        """Time at which `decide` has new actions without any event: the end of the next pause."""
        return min((slot.retry_ms for slot in self.slots.values() if slot.phase == "waiting"), default=None)
