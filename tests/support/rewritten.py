"""Test modules as pytest rewrites them, made once by all workers together instead of by each for itself.

In a fresh checkout the rewriting of all modules takes some 17 seconds of a processor, and each worker of pytest-xdist needs all of
them. So each makes its part before it collects, and finds the others' parts.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import PYC_TAIL, _read_pyc, _rewrite_test, _write_pyc, assertstate_key, get_cache_dir, try_makedirs

TESTS = Path(__file__).parents[1]


def write_part(config: pytest.Config, part: int, parts: int) -> None:
    """Write those of each `parts` modules that have the number `part`, unless they are there."""
    if sys.dont_write_bytecode:
        return
    state = config.stash[assertstate_key]
    for source in sorted(TESTS.rglob("test_*.py"))[part::parts]:
        place = get_cache_dir(source)
        rewritten = place / f"{source.stem}{PYC_TAIL}"
        if _read_pyc(source, rewritten) is None and try_makedirs(place):
            stamp, code = _rewrite_test(source, config)
            _write_pyc(state, code, stamp, rewritten)
