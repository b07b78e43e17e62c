"""Floating-point numbers as text, with the digits and the form of Java's `Double.toString` and `Float.toString` since Java 19.

Since then Java prints the shortest decimal number that reads back as the same value, and of several the closest (JDK-4511638), as
Arrow does. Earlier releases sometimes print more digits. Only the form differs: Java writes a power of ten below 0.001 and from
10,000,000.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from headgate.pipelines.columns.errors import UnlikeError

arrow: Any = pa
pc: Any = pyarrow.compute

JAVA_VERSION_MIN = 19
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

    Raises:
        UnlikeError: a number is so close to 0 that it has fewer bits (subnormal); Java then prints two digits although one is
            enough.
    """
    texts = numbers.cast(pa.string())
    sizes: npt.NDArray[Any] = np.abs(np.nan_to_num(numbers.fill_null(1).to_numpy(zero_copy_only=False), nan=1, posinf=1, neginf=1))
    if ((sizes > 0) & (sizes < np.finfo(sizes.dtype).tiny)).any():
        raise UnlikeError("a number is closer to 0 than Java and Arrow print alike")
    finite = pc.is_finite(numbers)
    whole = pc.and_(finite, pc.invert(pc.match_substring(texts, ".")))
    plain = pc.if_else(whole, pc.binary_join_element_wise(texts, ".0", ""), texts)
    beyond = (sizes != 0) & ((sizes < _PLAIN[0]) | (sizes >= _PLAIN[1]))
    if beyond.any():
        mask = arrow.array(beyond)
        powers = texts.filter(mask)
        for pattern, form in _FORMS:
            powers = pc.replace_substring_regex(powers, pattern, form)
        plain = pc.replace_with_mask(plain, mask, powers)
    if pc.all(pc.fill_null(finite, True)).as_py():
        return plain
    for arrows, javas in (("nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")):
        plain = pc.if_else(pc.equal(texts, arrows), javas, plain)
    return plain
