"""How a topic gets the files of a flood's source, and in which order their rows."""

from __future__ import annotations

from typing import Literal, get_args

from headgate.broker.runtime.errors import InvalidError, Reason

Files = Literal["rewrite", "auto", "link", "copy"]
WAYS = get_args(Files)
"""How the topic gets the files of a source: `auto` takes the first one of link, copy and rewrite that can be."""
REWRITE = "rewrite"
"""The files of the topic are written anew."""
Order = Literal["event_time", "source"]
ORDERS = get_args(Order)
BY_TIME, BY_SOURCE = ORDERS
"""The orders of a partition's records."""


def must_adopt(way: str, order: str, why: str) -> None:
    """Raise InvalidError if a flood must not write its files anew. `why`: the files are not adopted."""
    if way in ("link", "copy"):
        raise InvalidError(
            Reason.INVALID_REQUEST, f"the source's files cannot be adopted: {why}. Use --files auto or rewrite. files=`{way}`"
        )
    if order == BY_SOURCE:
        raise InvalidError(
            Reason.INVALID_REQUEST,
            f"the records can be in the order of the source only if its files are adopted, and they cannot be: {why}. "
            f"Use --order event_time. order=`{order}`",
        )


def check_way(way: str) -> None:
    """Raise InvalidError for an unknown way."""
    if way not in WAYS:
        raise InvalidError(Reason.INVALID_REQUEST, f"files is {', '.join(WAYS)}. files=`{way}`")


def check_order(order: str, way: str) -> None:
    """Raise InvalidError for an unknown order, and for one that the way does not give."""
    if order not in ORDERS:
        raise InvalidError(Reason.INVALID_REQUEST, f"order is {', '.join(ORDERS)}. order=`{order}`")
    if order == BY_SOURCE and way == REWRITE:
        raise InvalidError(
            Reason.INVALID_REQUEST,
            "files that are written anew are in the order of event time: use --files link, copy or auto for --order source. "
            f"order=`{order}` files=`{way}`",
        )
