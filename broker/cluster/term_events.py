"""The events and effects of the leader's term (`term.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.liveness import Answer, Evidence
from headgate.broker.cluster.objects import Incarnation
from headgate.broker.cluster.segments import BrokerLoad, Order, Plan
from headgate.broker.runtime.errors import CorruptError
from headgate.broker.runtime.steps import Steps

# -- events


@dataclass(frozen=True, slots=True)
class Began:
    """The first commit of the term is durable. The beginning of the term took `took_s` seconds."""

    took_s: float


@dataclass(frozen=True, slots=True)
class Opened:
    """This broker's engine works. The leader begins to watch the other brokers."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """`Term.pause_s` has passed."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A member's stream begins. An earlier stream of this incarnation has been ended."""

    incarnation: Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """A member has sent a report.

    `late_s`: seconds by which its timers are late. `serves`: its gRPC port is open. `clock_ahead_ms`: milliseconds by which the
    leader's clock is ahead of the member's machine; None: the report does not say. `round_trip_s`: seconds from a
    report until the answer.
    """

    load: BrokerLoad
    trouble: str
    late_s: float
    serves: bool
    clock_ahead_ms: int | None
    round_trip_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Spoke:
    """A member has sent a message that is not a report."""

    incarnation_id: str


@dataclass(frozen=True, slots=True)
class Admitted:
    """The commit of `Term.admit` has ended, well or not. From now on the leader waits for the broker's stream."""

    incarnation_id: str


@dataclass(frozen=True, slots=True)
class Left:
    """A member's stream has ended."""

    incarnation_id: str


@dataclass(frozen=True, slots=True)
class Probed:
    """The answer to a `Probe`."""

    incarnation_id: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class LeaseWritten:
    """The result of a renewal of the lease. `stored` False: the store did not answer."""

    stored: bool


@dataclass(frozen=True, slots=True)
class LeaseKept:
    """The store did not answer a `GiveLeaseBack`: this broker leads on."""


@dataclass(frozen=True, slots=True)
class Measured:
    """This broker's own load in the last second, and the seconds that a commit takes at the moment."""

    load: BrokerLoad
    commit_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PlanDue:
    """A plan is wanted now."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A `MakePlan` has ended."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Leaving:
    """This broker must lose its segments and get no new ones."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """A `FailOver` has ended. Without brokers, it ended with the term.

    `lost`: brokers whose recovery is committed. `damaged`: brokers whose logs cannot be read, with the error. `edits`: of the
    commit. `began_s`: monotonic time, in seconds, at which the failover began.
    """

    lost: Sequence[Incarnation] = ()
    damaged: Mapping[Incarnation, CorruptError] = field(default_factory=dict)
    edits: Sequence[Edit] = ()
    why: Mapping[str, str] = field(default_factory=dict)
    began_s: float = 0.0


Event: TypeAlias = (
    Began
    | Opened
    | Ticked
    | Admitted
    | Joined
    | Reported
    | Spoke
    | Left
    | Probed
    | LeaseWritten
    | LeaseKept
    | Measured
    | PlanDue
    | Planned
    | Leaving
    | Recovered
)


# -- effects


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask whether the broker's address accepts connections. Answered with `Probed`."""

    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class Replace:
    """A broker is lost: count it, and end its stream. A `FailOver` follows."""

    incarnation: Incarnation
    evidence: Evidence
    why: str


@dataclass(frozen=True, slots=True)
class WaitFor:
    """A broker has been silent for the time-out and is waited for: tell the operator."""

    incarnation: Incarnation
    why: str


@dataclass(frozen=True, slots=True)
class FailOver:
    """Fence and recover the condemned brokers, and commit their successors. `why`: by incarnation, for those that were judged
    now. Answered with `Recovered`."""

    why: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Damaged:
    """No broker can lead a lost broker's partitions until its log is restored: tell the operator."""

    incarnation: Incarnation
    why: str
    error: CorruptError


@dataclass(frozen=True, slots=True)
class GiveLeaseBack:
    """End this term, because this broker is probably cut off. Answered with `LeaseKept` if the store does not answer."""


@dataclass(frozen=True, slots=True)
class Report:
    """Note the error of this broker's clock, send each member a sign of life, and measure this broker's load. Answered with
    `Measured`.

    `clock_error_ms`: milliseconds by which this broker's clock is ahead of most members' clocks; 0: it is right, or unknown.
    """

    clock_error_ms: int


@dataclass(frozen=True, slots=True)
class MakePlan:
    """Run these steps to their end, beside other work: a plan over very many segments takes long. Answered with `Planned`."""

    steps: Steps[Plan]


@dataclass(frozen=True, slots=True)
class Carry:
    """Carry out an order of the planner."""

    order: Order


@dataclass(frozen=True, slots=True)
class PlanLater:
    """Send `PlanDue` after a short pause, in which other brokers may announce their end too."""


@dataclass(frozen=True, slots=True)
class CountBrokers:
    """Count the live brokers again, because a broker joined."""


Effect: TypeAlias = (
    Probe | Replace | WaitFor | FailOver | Damaged | GiveLeaseBack | Report | MakePlan | Carry | PlanLater | CountBrokers
)
