"""Errors of the product, as tests expect them."""

from __future__ import annotations

from typing import TypeVar

import pytest

from headgate.broker.runtime.errors import HeadgateError, Reason

Error = TypeVar("Error", bound=HeadgateError)


def raises(kind: type[Error], reason: Reason, match: str | None = None) -> pytest.RaisesExc[Error]:
    """The block raises an error of this kind, for this reason, with a message that matches."""
    return pytest.raises(kind, match=match, check=lambda error: error.reason is reason)
