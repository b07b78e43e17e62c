"""The checksum of all stored data: the standard polynomial, over any buffer; and the modules that loading it must not import."""

from __future__ import annotations

import subprocess
import sys

import crc32c as package
import pytest

from headgate.broker.log.crc import crc32c


def test_the_check_value_of_the_polynomial() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720, appendix B.4, and every catalogue of CRCs
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283


@pytest.mark.parametrize("size", [0, 1, 7, 8, 63, 4096, 100_001])
def test_it_is_that_of_the_package(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    for buffer in (data[:size], bytearray(data[:size]), memoryview(data)[1 : size + 1]):
        assert crc32c(buffer) == package.crc32c(bytes(buffer))


def test_it_comes_without_the_package() -> None:
    code = "import sys, headgate.broker.log.crc; print('argparse' in sys.modules, 'importlib.metadata' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]
