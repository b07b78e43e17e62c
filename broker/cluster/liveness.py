"""Decides which brokers are dead, which are cut off, and which are only starved. No I/O; time is an argument.

Theory of operation. A broker on a machine with too many runnable processes is silent, and so is a dead broker. Three things
distinguish them:

- *The address.* The kernel of a starved or stopped process accepts connections at its listening sockets. The kernel of a dead
  process refuses them, and a machine that is gone or cut off does not answer. The leader probes the addresses of all *suspects*
  (`Detector.suspects`) again and again: brokers without a stream, and brokers that are silent for half of the time-out.
- *Lateness.* Each broker measures how late its own timers are, and reports that to the leader. The leader also measures how late
  the broker's reports arrive. `Lateness` keeps the peak of the last minute. It stretches a time-out (`stretched`), at most five
  times.
- *Attention.* Time in which the measuring process itself did not run says nothing about others. `Attention` counts a gap between
  two of its own ticks as one second at most.

So a broker is lost (`Detector.lost`)

====================  =========================  ====================================================================
its stream            its address                it is lost
====================  =========================  ====================================================================
ended                 refuses                    at once
ended                 unreached                  when its promise has ended (see below)
never began           refuses                    at once
open and silent       refuses                    at once
never began, silent   unreached                  after the time-out
ended, silent         accepts, or not known      after the stretched time-out; one at a time with growing pauses (`Pace`)
====================  =========================  ====================================================================

A broker opens its port some time after it asked to join. So a refusal counts as not known

- if the broker reported that its port is not open yet;
- if this leader admitted it as a new broker, and it has not reported an open port;
- if its stream is open, and it has not reported in this term.

While the leader commits a broker's admission, the broker is no suspect.

A leader that has just started, and has not heard a broker yet, knows no lateness. It allows the longest silence.

The leader answers a report with a *promise*: the broker is not lost for a whole time-out from then on, whatever the guesses are.
The only exception is a refusal: it proves that the process is gone, so it relies on no promise (`engine/base/proof.py`). So if a
broker's stream ended and its address is not reached, the broker is lost when its promise ends.

A *long way* explains some silence, too: a member tells the seconds of a round trip when it joins and with each report. They are
added to each time-out, several times if the member must open a new connection.

On a quiet machine the stretched time-out equals the time-out: a broker that hangs is replaced after `cluster_member_timeout_ms`.
On a starved machine it is replaced after up to `STRETCHED_MAX` times that, of the leader's attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from enum import Enum

MEMBER_REPORT_S = 0.5
"""Pause, in seconds, between two reports of a member to the leader."""
LEADER_REPORT_S = 1.0
"""Longest pause, in seconds, between two messages of the leader to a member, on a quiet machine."""
TICK_S = 0.25
"""Pause, in seconds, between two wake-ups by which a process measures how late its timers are. It is long, so that an idle
broker wakes seldom."""
LATE_S_MIN = 0.2
"""Lateness, in seconds, below which it does not count. On a quiet machine, garbage collection and the largest requests delay a
timer by this much."""
STRETCH = 4.0
"""Seconds by which a time-out grows for each second of lateness above `LATE_S_MIN`. A report passes through at most four turns,
and each may be late: the member's timer, its writing thread, the leader's reading thread, and its loop."""
STRETCHED_MAX = 5.0
"""The longest stretched time-out, in multiples of the time-out."""
PEAK_S = 30.0
"""Seconds for which the peak of lateness is remembered at least; twice as long at most."""
KNOWN_S = 10.0
"""Seconds for which a process must measure its lateness before it knows whether its machine is quiet."""
GAP_S_MAX = 1.0
"""Largest number of seconds that a gap between two ticks counts. In the rest of the gap, this process did not run either."""
JOIN_ROUND_TRIPS = 4.0
"""Round trips until a broker without a stream has joined again: those of TCP, TLS and HTTP/2, and half of one each until it learns
of the end of its stream and until its request is here."""
ASK_AGAIN_S = 0.2
"""Pause, in seconds, between two probes of one suspect's address."""
PAUSE_S_MAX = 60.0
"""Longest pause, in seconds, between two replacements for silence."""
CALM_PAUSES = 4.0
"""After this many pauses without a replacement for silence, the next pause is the shortest one again."""


class Lateness:
    """The peak of recent lateness, in seconds."""

    __slots__ = ("_before_s", "_now_s", "_since_s")

    def __init__(self) -> None:
        self._since_s = 0.0
        """Start of the current period of `PEAK_S`, in seconds of the monotonic clock."""
        self._now_s = 0.0
        """Peak of the current period."""
        self._before_s = 0.0
        """Peak of the period before it."""

    def observe(self, late_s: float, at_s: float) -> None:
        """Note one observation; a negative one counts as 0."""
        self._turn(at_s)
        self._now_s = max(self._now_s, late_s)

    def peak_s(self, at_s: float) -> float:
        """The largest observation of the last `PEAK_S` to twice `PEAK_S`."""
        self._turn(at_s)
        return max(self._now_s, self._before_s)

    def _turn(self, at_s: float) -> None:
        periods = (at_s - self._since_s) // PEAK_S
        if periods >= 1:
            self._before_s = self._now_s if periods == 1 else 0.0
            self._now_s = 0.0
            self._since_s += periods * PEAK_S


def is_starved(late_s: float) -> bool:
    """True if a process with this lateness gets too little CPU time."""
    return late_s > LATE_S_MIN


def stretched(timeout_s: float, late_s: float) -> float:
    """A time-out for silence, if timers and answers have been this late: `timeout_s` to `STRETCHED_MAX` times that."""
    return min(timeout_s + STRETCH * max(late_s - LATE_S_MIN, 0.0), STRETCHED_MAX * timeout_s)


class Attention:
    """The time in which this process could have heard others, and the lateness of its own timers.

    A task reports every wake-up to it, `TICK_S` after the one before on a quiet machine. Silences are measured on its clock,
    `at`.
    """

    __slots__ = ("_began_s", "_counted_s", "_late", "_woke_s")

    def __init__(self, now_s: float) -> None:
        self._began_s = self._woke_s = now_s
        self._counted_s = 0.0
        self._late = Lateness()

    def woke(self, now_s: float) -> None:
        self._counted_s = self.at(now_s)
        self._late.observe(now_s - self._woke_s - TICK_S, now_s)
        self._woke_s = now_s

    def at(self, now_s: float) -> float:
        """Attention so far, in seconds. Silences are measured on this clock."""
        return self._counted_s + min(now_s - self._woke_s, GAP_S_MAX)

    def is_new(self, now_s: float) -> bool:
        """True if this process does not know its lateness yet."""
        return now_s - self._began_s < KNOWN_S

    def late_s(self, now_s: float) -> float:
        """Recent lateness of this process's timers, in seconds. A timer that is due and has not fired yet counts too."""
        return max(self._late.peak_s(now_s), now_s - self._woke_s - TICK_S)


class Heard:
    """The other end of a stream: the time of its last message, and the lateness of its messages.

    Args:
        interval_s: pause in seconds between two of its messages on a quiet machine.
        at_s: attention at its last message. A value above the present gives it time to begin.
    """

    __slots__ = ("_interval_s", "at_s", "late")

    def __init__(self, interval_s: float, at_s: float) -> None:
        self._interval_s = interval_s
        self.at_s = at_s
        self.late = Lateness()

    def spoke(self, at_s: float, now_s: float) -> None:
        self.late.observe(at_s - self.at_s - self._interval_s, now_s)
        self.at_s = at_s

    def silent_s(self, at_s: float) -> float:
        return max(at_s - self.at_s, 0.0)


class Answer(Enum):
    """The result of a probe of an address."""

    ACCEPTED = "accepts connections"
    REFUSED = "refuses connections"
    UNREACHED = "is not reached"
    UNKNOWN = "could not be asked"


class Evidence(Enum):
    """The evidence that a broker is lost."""

    DEAD = "its process is gone"
    UNREACHED = "its machine is not reached"
    SILENT = "it does not answer"


@dataclass(frozen=True, slots=True)
class Lost:
    """A broker that must be replaced. `why`: the numbers that decided it, for the operator."""

    incarnation_id: str
    evidence: Evidence
    why: str


@dataclass(slots=True)
class Pace:
    """Replacements for silence: one at a time, with pauses that double. A pause begins when the failover has ended, so a slow
    failover does not shorten it.

    Args:
        pause_s_min: the shortest pause, in seconds.
    """

    pause_s_min: float
    pause_s: float = 0.0
    """Pause after the last replacement, in seconds; 0: there was none yet."""
    last_s: float = float("-inf")
    """Start of the last replacement; after its end, that end."""
    is_under_way: bool = False

    def allows(self, now_s: float) -> bool:
        return now_s - self.last_s >= self.pause_s

    def took(self, now_s: float) -> None:
        """Note that a broker is replaced for its silence."""
        is_calm = now_s - self.last_s > CALM_PAUSES * max(self.pause_s, self.pause_s_min)
        self.pause_s = self.pause_s_min if is_calm else min(2 * self.pause_s, max(PAUSE_S_MAX, self.pause_s_min))
        self.last_s, self.is_under_way = now_s, True

    def ended(self, now_s: float) -> None:
        """Note that a failover has ended, whether or not a broker was replaced for its silence in it."""
        if self.is_under_way:
            self.last_s, self.is_under_way = now_s, False


@dataclass(slots=True)
class _Peer:
    """One other broker, as the leader sees it."""

    heard: Heard
    told_late_s: float = 0.0
    """Lateness of its own timers, in seconds, from its last report."""
    is_connected: bool = False
    has_left: bool = False
    """True if its stream ended in this term, and no other has begun."""
    is_asking: bool = False
    """True while the leader commits its admission."""
    serves: bool | None = None
    """True if its port is open, from its last report. False also for a new broker that has not reported. None: it has not
    reported in this term."""
    answer: Answer | None = None
    """The last result for its address since it became a suspect. None: not known yet."""
    asked_s: float = field(default=float("-inf"))
    round_trip_s: float = 0.0
    """Seconds of a round trip to it, from its last report."""
    promised_s: float = float("-inf")
    """The monotonic time, in seconds, until which it is promised not to be lost, unless its process is gone."""
    gone: str = ""
    """The reason why it is certainly gone. Empty: it is not certain."""
    is_known: bool = False
    """True if it has reported in this term."""
    has_spoken: bool = False
    """True if a message came over its present stream."""
    is_waited_for: bool = False
    """True if it is silent for longer than the time-out, and not lost yet."""

    @property
    def way_s(self) -> float:
        """Seconds of silence that the length of the way explains."""
        return self.round_trip_s if self.is_connected else JOIN_ROUND_TRIPS * self.round_trip_s

    def lives(self, at_s: float) -> None:
        """Its silence begins anew, at this attention."""
        self.heard.at_s = at_s
        self.answer, self.is_waited_for, self.asked_s = None, False, float("-inf")

    def late_s(self, now_s: float) -> float:
        """Recent lateness of its timers and messages, in seconds."""
        return max(self.heard.late.peak_s(now_s), self.told_late_s)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The brokers that are lost now, and those that have just been silent for the time-out and for which the leader waits."""

    lost: tuple[Lost, ...] = ()
    waited_for: tuple[Lost, ...] = ()


class Detector:
    """Observes all other brokers during one term. Ids are incarnations.

    Args:
        timeout_s: seconds of silence after which a broker is lost, on a quiet machine.
        interval_s: pause in seconds between two reports of a broker.
        round_trip_s: seconds of a round trip to other brokers, until they report theirs.
    """

    def __init__(self, attention: Attention, timeout_s: float, interval_s: float, now_s: float, round_trip_s: float = 0.0) -> None:
        self._attention = attention
        self._timeout_s = timeout_s
        self._interval_s = interval_s
        self._round_trip_s = round_trip_s
        self._begin_s = attention.at(now_s)
        """Attention at which the silence of brokers that never joined begins."""
        self._peers: dict[str, _Peer] = {}
        self._pace = Pace(timeout_s)

    # -- events

    def begins(self, now_s: float, patience_s: float) -> None:
        """Called when the term has begun. All others have `patience_s` longer than the time-out to join."""
        self._begin_s = self._attention.at(now_s) + patience_s

    def silent_since(self, incarnation_id: str, silent_s: float, now_s: float) -> None:
        """Note that a broker has already been silent for this many seconds."""
        self._peer(incarnation_id).heard.at_s = self._attention.at(now_s) - silent_s

    def admitting(self, incarnation_id: str, *, is_new: bool, round_trip_s: float = 0.0) -> None:
        """Called when a broker asks to join. It waits for this leader meanwhile.

        Args:
            is_new: the manifest does not contain it yet, so its port has never been open.
            round_trip_s: seconds of a round trip to it at most.
        """
        peer = self._peer(incarnation_id)
        peer.round_trip_s = round_trip_s
        peer.heard.at_s, peer.is_asking, peer.answer = float("inf"), True, None
        if is_new:
            peer.serves = False

    def admitted(self, incarnation_id: str, now_s: float) -> None:
        """Called when a broker may begin its stream. From now on the leader waits for it."""
        peer = self._peer(incarnation_id)
        peer.heard.at_s, peer.is_asking = self._attention.at(now_s), False

    def joined(self, incarnation_id: str, now_s: float) -> None:
        """Called when a broker's stream begins."""
        peer = self._peer(incarnation_id)
        peer.is_connected, peer.has_left, peer.gone, peer.has_spoken = True, False, "", False
        peer.lives(self._attention.at(now_s))

    def heard(
        self,
        incarnation_id: str,
        now_s: float,
        *,
        late_s: float | None = None,
        serves: bool | None = None,
        round_trip_s: float | None = None,
    ) -> None:
        """Called for each message of a broker. With a report: its timers' lateness and a round trip in seconds, and whether its
        port is open."""
        peer = self._peer(incarnation_id)
        if not peer.has_spoken:
            # How late the first message is says how long the way is, and nothing about the broker's timers.
            peer.heard.at_s, peer.has_spoken = self._attention.at(now_s), True
        peer.heard.spoke(self._attention.at(now_s), now_s)
        if round_trip_s is not None:
            peer.round_trip_s = round_trip_s
        if late_s is not None:
            peer.told_late_s = late_s
        if serves is not None:
            peer.serves = serves
        peer.answer, peer.is_waited_for, peer.is_known = None, False, True

    def promise(self, incarnation_id: str, now_s: float) -> float:
        """Promise a broker, after a message from it, not to declare it lost unless its process is gone. Returns the promise's
        length in seconds."""
        peer = self._peer(incarnation_id)
        if peer.gone:
            return 0.0
        peer.promised_s = now_s + self._timeout_s
        return self._timeout_s

    def is_promised(self, incarnation_id: str, now_s: float) -> bool:
        """True if a broker may still rely on a promise."""
        return now_s < self._peer(incarnation_id).promised_s

    def left(self, incarnation_id: str, now_s: float) -> None:
        """Called when a broker's stream has ended. Either its process ended, or it left this leader; a probe of its address
        shows which."""
        peer = self._peer(incarnation_id)
        peer.is_connected, peer.has_left = False, True
        peer.lives(self._attention.at(now_s))

    def note_gone(self, incarnation_id: str, why: str) -> None:
        """Note that a broker is certainly gone: another process has its place."""
        self._peer(incarnation_id).gone = why

    def asking(self, incarnation_ids: Iterable[str], now_s: float) -> list[str]:
        """The suspects whose addresses must be probed now. The caller passes each result to `answered`."""
        found = []
        for incarnation_id in incarnation_ids:
            peer = self._peer(incarnation_id)
            if self._is_suspect(peer, now_s) and now_s - peer.asked_s >= ASK_AGAIN_S:
                peer.asked_s = float("inf")
                found.append(incarnation_id)
        return found

    def answered(self, incarnation_id: str, answer: Answer, now_s: float) -> None:
        """Called with the result of a suspect's probe."""
        peer = self._peer(incarnation_id)
        peer.asked_s = now_s
        peer.answer = answer if self._is_suspect(peer, now_s) else None

    def failed_over(self, now_s: float) -> None:
        """Called when the failover of lost brokers has ended."""
        self._pace.ended(self._attention.at(now_s))

    # -- conclusions

    def judge(self, incarnation_ids: Iterable[str], now_s: float) -> Judgement:
        """The lost brokers. At most one of them is lost for its silence alone; it then counts as replaced."""
        at_s = self._attention.at(now_s)
        lost: list[Lost] = []
        silent: list[tuple[float, str]] = []
        waited_for: list[Lost] = []
        for incarnation_id in incarnation_ids:
            peer = self._peer(incarnation_id)
            found = self._certain(peer, now_s)
            if found is not None:
                peer.gone = found[1]
                lost.append(Lost(incarnation_id, *found))
            elif peer.answer is not None and peer.heard.silent_s(at_s) > self._timeout_s + peer.way_s:
                over_s = peer.heard.silent_s(at_s) - self._allowed_s(peer, now_s)
                if over_s > 0 and now_s >= peer.promised_s and self._pace.allows(at_s):
                    silent.append((over_s, incarnation_id))
                elif not peer.is_waited_for:
                    peer.is_waited_for = True
                    waited_for.append(Lost(incarnation_id, Evidence.SILENT, self._numbers(peer, now_s)))
        if silent:
            incarnation_id = max(silent)[1]
            peer = self._peers[incarnation_id]
            self._pace.took(at_s)
            peer.gone = self._numbers(peer, now_s)
            lost.append(Lost(incarnation_id, Evidence.SILENT, peer.gone))
        return Judgement(tuple(lost), tuple(waited_for))

    def is_cut_off(self, now_s: float, but: Set[str] = frozenset()) -> bool:
        """True if all brokers with a stream, two or more, fell silent together. Then this broker is cut off.

        Args:
            but: incarnations that do not count: lanes end together with the broker beside them.
        """
        at_s = self._attention.at(now_s)
        parts = [
            peer.heard.silent_s(at_s)
            / (self._timeout_s + peer.way_s if peer.answer is Answer.UNREACHED else self._allowed_s(peer, now_s))
            for incarnation_id, peer in self._peers.items()
            if peer.is_connected and incarnation_id not in but
        ]
        return len(parts) > 1 and max(parts) > 1 and min(parts) > 0.5

    def late_s(self, incarnation_id: str, now_s: float) -> float:
        """Recent lateness of a broker's timers and messages, in seconds."""
        peer = self._peers.get(incarnation_id)
        return 0.0 if peer is None else peer.late_s(now_s)

    def allowed_s(self, incarnation_id: str, now_s: float) -> float:
        """Seconds of silence after which a broker is replaced."""
        return self._allowed_s(self._peer(incarnation_id), now_s)

    def round_trip_s(self, incarnation_id: str) -> float:
        """Seconds of a round trip to a broker, as far as they are known."""
        return self._peer(incarnation_id).round_trip_s

    def forget(self, but: Set[str]) -> None:
        """Forget all brokers except these and those that ask to join."""
        for incarnation_id in self._peers.keys() - but:
            if not self._peers[incarnation_id].is_asking:
                del self._peers[incarnation_id]

    # -- rules

    def _certain(self, peer: _Peer, now_s: float) -> tuple[Evidence, str] | None:
        """Evidence that lateness cannot explain."""
        if peer.gone:
            return Evidence.DEAD, peer.gone
        has_served = not peer.is_connected if peer.serves is None else peer.serves
        if peer.answer is Answer.REFUSED and has_served:
            return Evidence.DEAD, f"{'its stream ended and ' if peer.has_left else ''}its address refuses connections"
        if peer.answer is Answer.UNREACHED and now_s >= peer.promised_s:
            if peer.has_left:
                return Evidence.UNREACHED, "its stream ended and its address is not reached"
            silent_s = peer.heard.silent_s(self._attention.at(now_s))
            if silent_s > self._timeout_s + peer.way_s:
                return Evidence.UNREACHED, f"it was silent for {silent_s:.1f} s and its address is not reached"
        return None

    def _is_suspect(self, peer: _Peer, now_s: float) -> bool:
        if peer.is_asking:
            return False
        return not peer.is_connected or peer.heard.silent_s(self._attention.at(now_s)) > self._timeout_s / 2

    def _allowed_s(self, peer: _Peer, now_s: float) -> float:
        if not peer.is_known and self._attention.is_new(now_s):
            return STRETCHED_MAX * self._timeout_s + peer.way_s  # neither it nor this process knows its lateness yet
        return stretched(self._timeout_s, max(self._attention.late_s(now_s), peer.late_s(now_s))) + peer.way_s

    def _numbers(self, peer: _Peer, now_s: float) -> str:
        silent_s = peer.heard.silent_s(self._attention.at(now_s))
        return (
            f"it was silent for {silent_s:.1f} s of {self._allowed_s(peer, now_s):.1f} s allowed (time-out {self._timeout_s:g} s; "
            f"it ran {peer.late_s(now_s):.1f} s late, the leader {self._attention.late_s(now_s):.1f} s)"
        )

    def _peer(self, incarnation_id: str) -> _Peer:
        peer = self._peers.get(incarnation_id)
        if peer is None:
            heard = Heard(self._interval_s, self._begin_s)
            peer = self._peers[incarnation_id] = _Peer(heard, round_trip_s=self._round_trip_s)
        return peer
