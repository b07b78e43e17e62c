"""How many examples tests of properties try.

HEADGATE_FUZZ_EXAMPLES multiplies them all: 800 makes each test 32 times as long as in the suite.
"""

from __future__ import annotations

import os

USUAL = 25
"""Examples of a test that does not state their number."""
EXAMPLES = int(os.environ.get("HEADGATE_FUZZ_EXAMPLES", USUAL))


def examples(usual: int) -> int:
    """The examples of a test that has `usual` of them in the suite."""
    return max(1, usual * EXAMPLES // USUAL)
