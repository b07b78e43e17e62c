"""The tables of broker/REFERENCE.md against the code: different if `python -m headgate.broker.cli.tables` was not run"""

from __future__ import annotations

import pytest

from headgate.broker.cli import tables


def test_the_tables_are_those_of_the_code() -> None:
    page = tables.PAGE.read_text(encoding="utf-8")
    assert tables.filled(page) == page, "run python -m headgate.broker.cli.tables"


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for a table"):
        tables.filled("# Brokers")
