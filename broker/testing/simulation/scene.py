"""The parts and conditions of one run that the fleet and the faults share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from headgate.broker.testing.simulation.loop import VirtualLoop
from headgate.broker.testing.simulation.network import Network
from headgate.broker.testing.simulation.store import Medium, Weather
from headgate.broker.testing.simulation.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The simulated machines of one run, and the conditions that its seed chose.

    Args:
        calm: the store's weather without faults.
        fail: ends the run; a checker calls it with the violation that it found.
        append: the store can append.
        jumps: only clocks jump, under the most sensitive conditions: few brokers, on a store without a clock of its own, that
            look for old records all the time.
        replicated: topics have `ack=replicated`: nothing may be lost, whatever fault hits one broker and then the next.
        member_timeout_ms: the brokers' setting `cluster.member_timeout_ms`.
    """

    random: Random
    loop: VirtualLoop
    network: Network
    medium: Medium
    trace: Trace
    calm: Weather
    fail: Callable[[BaseException], None]
    append: bool
    jumps: bool
    replicated: bool
    member_timeout_ms: int
