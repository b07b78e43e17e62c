"""What a load found, and the judgements about it: Dagster shows them as asset checks, the command line as lines. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.plan import Plan, deviation, loads_a_part

if TYPE_CHECKING:
    from headgate.pipelines.certificate import Certificate

CHECKS = {
    "certificate_complete": "A client reads the rows, bytes and checksums of the source from the topic. Partitions of earlier runs "
    "were loaded under the present definition of the flood.",
    "in_order": "Within each partition of the topic no record is older than the one before it.",
    "no_duplicates": "Counts offsets that a client reads more than once, of all records of the loaded partitions. Rows that are "
    "twice in the source are two records, and do not count.",
    "plan_against_actual": "The run loaded the planned number of rows. An estimate may be off by half; `where`, and files "
    "with rows of other times, may leave out any number.",
    "nothing_left_out": "The event times of all rows lie in the partition that their path names; no partition takes other rows. "
    "Counted from the metadata of Parquet files, for floods without `where`.",
    "source_unchanged": "Partitions of earlier runs still have as many rows at their source as were loaded. Counted from the "
    "metadata of Parquet files, for floods without `where`.",
}
"""Names and descriptions of the checks that a load reports; `judgements` has one for each."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of one check of `CHECKS`. `warns`: a failed one is worth a look, and no error."""

    name: str
    passed: bool
    text: str
    warns: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a load found.

    `keys`: all partitions of the run. `certificates`: those of loaded partitions, by key. `otherwise`: messages about partitions
    that were loaded under another definition. `cover`: whether partitions take all rows of their paths, and the message. `changed`,
    `unknown`: messages about sources that changed, and about sources that cannot be compared. `seconds`: duration of the load.
    """

    plan: Plan
    keys: Sequence[str]
    certificates: Mapping[str, Certificate]
    otherwise: Sequence[str]
    cover: tuple[bool, str]
    changed: Sequence[str]
    unknown: Sequence[str]
    seconds: float

    @property
    def added(self) -> int:
        """Rows that the run added."""
        return sum(certificate.added_rows for certificate in self.certificates.values())

    @property
    def read(self) -> int:
        """Rows of the partitions that the run loaded."""
        return sum(certificate.rows for certificate in self.certificates.values())

    @property
    def size_bytes(self) -> int:
        """Bytes of their files."""
        return sum(certificate.size_bytes for certificate in self.certificates.values())

    @property
    def doubles(self) -> int:
        """Offsets that were read more than once."""
        return sum(certificate.duplicate_rows or 0 for certificate in self.certificates.values())

    @property
    def disorder(self) -> int:
        """Records that stand behind a newer one of their partition."""
        return sum(certificate.disordered_rows or 0 for certificate in self.certificates.values())

    @property
    def looked(self) -> bool:
        """True when all rows were read back."""
        return all(certificate.verified or certificate.rows == 0 for certificate in self.certificates.values())

    @property
    def problems(self) -> list[str]:
        """What makes the certificate incomplete."""
        return [*self.otherwise, *(problem for certificate in self.certificates.values() for problem in certificate.problems())]

    @property
    def before(self) -> int:
        """Partitions of the run that were in the topic before."""
        return len(self.keys) - len(self.certificates)

    def deviation(self, flood: Flood) -> tuple[bool, float]:
        """Plan against actual, as `plan.deviation`."""
        return deviation(self.plan, self.read, filtered=loads_a_part(flood))


def judgements(flood: Flood, outcome: Outcome) -> list[Judgement]:
    """The results of all checks of `CHECKS`, in their order."""
    note = "" if outcome.looked else " (not read back: the flood says `verify: false`, or it was committed before)"
    problems, (good, off) = outcome.problems, outcome.deviation(flood)
    there = f"{outcome.before} partitions were in the topic before"
    return [
        Judgement("certificate_complete", not problems, "\n".join(problems) or f"{outcome.added:,} rows{note}"),
        Judgement(
            "in_order", outcome.disorder == 0, f"{outcome.disorder:,} records before an older one of their partition{note}"
        ),
        Judgement(
            "no_duplicates", outcome.doubles == 0,
            f"{outcome.doubles:,} of {outcome.read:,} offsets were read more than once{note}",
        ),
        Judgement("plan_against_actual", good, f"{off:+.1%} rows against the plan", warns=True),
        Judgement("nothing_left_out", *outcome.cover, warns=True),
        Judgement("source_unchanged", not outcome.changed, "\n".join([*outcome.changed, *outcome.unknown]) or there, warns=True),
    ]  # fmt: skip
