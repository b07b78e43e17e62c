"""A short form of `make chaos` (`tests/chaos`), and a proof that it can fail.

Runs: lives of three brokers with a few faults, judged by the verifier; in the long form also in the middle of floods by
Spark. Then a life of brokers that ack before a record is on the disk, and a power loss: acked records must be missing. A mismatch
in the first lives means a defect of the brokers. A mismatch in the last one means that the simulated power loss loses no data, so
these tests prove nothing.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.life import live

Report = Callable[[str], None]


def test_a_short_life(tmp_path: Path, report: Report) -> None:
    page = live(tmp_path / "life", ["clock", "memory"], random.Random(1), report, on_device=False)
    assert (page["verdict"], page["deleted"]) == ("right", 0), page["summary"]


@pytest.mark.needs_mount
def test_a_short_life_with_power_losses(tmp_path: Path, report: Report) -> None:
    page = live(tmp_path / "life", ["power", "full"], random.Random(1), report, on_device=True)
    assert (page["verdict"], page["deleted"]) == ("right", 0), page["summary"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_floods_under_faults(tmp_path: Path, report: Report) -> None:
    faults = ["kill", "spark", "starve", "clock", "memory", "pause", "spark"]
    page = live(tmp_path / "life", faults, random.Random(1), report, on_device=False, with_floods=True)
    assert (page["verdict"], page["deleted"]) == ("right", 0), page["summary"]


@pytest.mark.needs_mount
def test_a_power_loss_takes_what_was_acked_before_it_was_on_the_disk(tmp_path: Path, report: Report) -> None:
    settings = {"HEADGATE_WAL_FSYNC": "never"}
    page = live(tmp_path / "life", ["power"], random.Random(1), report, on_device=True, settings=settings, settle_s=2)
    assert page["verdict"] == "wrong" and page["errors"]["lost"] > 0, page["summary"]
    shutil.rmtree(tmp_path / "life")  # the image of a wrong life is kept, and this one had to be wrong
