"""A short form of the soak (`tests/soak/`): all of its work, with retention so short that it ends within minutes.

Compared: as in the long form. A mismatch means that memory, the store, the manifest or recovery grows with time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.soak.__main__ import report as report_of
from tests.soak.life import Plan, live

DURATION_S = 300.0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_nothing_grows(tmp_path: Path, report: Callable[[str], None]) -> None:
    plan = Plan(duration_s=DURATION_S, directory=tmp_path / "soak")
    assert report_of(live(plan, report), tmp_path / "pictures", plan, report) == []
