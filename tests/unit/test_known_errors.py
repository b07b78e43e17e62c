"""The errors of a broker's parts as the errors that end it. A mismatch means that a broker without memory blames something else."""

from __future__ import annotations

import errno

import pytest

from headgate.broker.runtime.errors import Reason
from headgate.broker.runtime.tasks import known


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (OSError(errno.ENOMEM, "no memory"), True),
        (ImportError("_random.so: failed to map segment from shared object"), True),
        (ImportError("x.so: cannot open shared object file: Cannot allocate memory"), True),
        (ImportError("No module named x"), False),
        (OSError(errno.EIO, "broken"), False),
    ],
)
def test_a_want_of_memory_is_called_so(error: Exception, is_memory: bool) -> None:
    assert (known(error, "start").reason is Reason.OUT_OF_MEMORY) is is_memory
