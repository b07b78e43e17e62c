"""Floating-point numbers as text, with the digits and the form of Java's `Double.toString` and `Float.toString` since Java 19.

Since then Java prints the shortest decimal number that reads back as the same value, and of several the closest (JDK-4511638), as
Arrow does. Earlier releases sometimes print more digits. Only the form differs: Java writes a power of ten below 0.001 and from
10,000,000.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

arrow: Any = pa
pc: Any = pyarrow.compute

_SPECIAL = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_PLAIN = (1e-3, 1e7)
"""Java prints numbers of this size without a power of ten: from the first one, up to the second one."""
_FORMS = (
    # Arrow writes a power of ten below 1e-6 and from 1e10 only.
    *((rf"^(-?)0\.0{{{zeros}}}([1-9])(\d*)$", rf"\1\2.\3E-{zeros + 1}") for zeros in range(3, 6)),
    *((rf"^(-?\d)(\d{{{digits}}})(?:\.(\d*))?$", rf"\1.\2\3E{digits}") for digits in range(7, 10)),
    (r"^(-?\d)e", r"\1.e"),
    (r"e\+?(-?)0*", r"E\1"),
    # One digit after the point at least, and no zeros behind others.
    (r"0*E", "E"),
    (r"\.E", ".0E"),
)


def java_text(numbers: Any) -> Any:
    """The numbers as strings; null stays null.

    Args:
        numbers: an array of doubles or floats.
    """
    texts = numbers.cast(pa.string())
    known: npt.NDArray[Any] = np.asarray(numbers.fill_null(0.5))
    with np.errstate(invalid="ignore"):
        sizes = np.abs(known)
        whole = (known == np.floor(known)) & (sizes < _PLAIN[1])
        beyond = (sizes != 0) & ((sizes < _PLAIN[0]) | (sizes >= _PLAIN[1]))
        few = (sizes > 0) & (sizes < np.finfo(sizes.dtype).tiny)
        special = ~np.isfinite(known)
    if whole.any():
        texts = _replaced(texts, whole, lambda some: pc.binary_join_element_wise(some, ".0", ""))
    if beyond.any():
        texts = _replaced(texts, beyond & ~special & ~few, _with_powers)
    if few.any():
        texts = _replaced(texts, few, lambda _: arrow.array([_subnormal(text) for text in known[few]], pa.string()))
    if special.any():
        texts = _replaced(texts, special, lambda some: arrow.array([_SPECIAL[number] for number in some.to_pylist()], pa.string()))
    return texts


def _replaced(texts: Any, rows: npt.NDArray[np.bool_], change: Callable[[Any], Any]) -> Any:
    mask = arrow.array(rows)
    return pc.replace_with_mask(texts, mask, change(texts.filter(mask)))


def _with_powers(texts: Any) -> Any:
    for pattern, form in _FORMS:
        texts = pc.replace_substring_regex(texts, pattern, form)
    return texts


def _subnormal(number: Any) -> str:
    """A number with so few bits that one digit may read back as it. Java prints two at least, the closest ones."""
    digits, power = np.format_float_scientific(number, unique=True, trim="0").split("e")
    if len(digits.lstrip("-")) == len("1.0"):
        digits, power = f"{float(number):.1e}".split("e")
    return f"{digits}E{int(power)}"
