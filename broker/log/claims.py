"""Whose producer ids are, on one broker, for clients with limited rights. No I/O.

Any reader of a topic sees the producer ids in its batches. With such an id another client that may write to the topic could spoil
a producer's sequence, so that the producer's next records count as duplicates and are lost. Or it could put records into the
producer's transaction. So a producer id belongs to the user whose batch was appended with it first, and a transaction to its
transactional id, which the coordinator confirms.
"""

from __future__ import annotations

from headgate.broker.log.batch import TRANSACTIONAL
from headgate.broker.runtime.errors import InvalidError, Reason, RetryError

CLAIMS_MAX = 100_000
"""Producer ids that are remembered; the oldest are forgotten, and belong to their next user."""


class ProducerClaims:
    """Remembers users of producer ids since the broker's start."""

    def __init__(self) -> None:
        self._users: dict[int, str] = {}
        self._transactions: dict[int, str] = {}
        """By producer id: its transactional id, as its coordinator has confirmed."""

    def check(self, producer_id: int, user: str, transactional_id: str | None, *, is_transactional: bool) -> None:
        """Check that a user's batch may have a producer id.

        Raises:
            InvalidError(INVALID_PRODUCER_ID_MAPPING): it belongs to another user, or the request names no transactional id.
            RetryError(TRANSACTION_UNVERIFIED): ask the coordinator first.
        """
        if is_transactional:
            if transactional_id is None:
                raise InvalidError(
                    Reason.INVALID_PRODUCER_ID_MAPPING,
                    f"a batch of a transaction needs the transactional id in its request. producer_id=`{producer_id}`",
                )
            if not self.is_confirmed(producer_id, transactional_id):
                raise RetryError(
                    Reason.TRANSACTION_UNVERIFIED, f"the coordinator has not confirmed the producer. producer_id=`{producer_id}`"
                )
        elif self._users.get(producer_id, user) != user:
            raise InvalidError(
                Reason.INVALID_PRODUCER_ID_MAPPING, f"the producer id belongs to another user. producer_id=`{producer_id}`"
            )

    def use(self, producer_id: int, user: str) -> None:
        """A batch was appended."""
        _put(self._users, producer_id, self._users.get(producer_id, user))

    def is_confirmed(self, producer_id: int, transactional_id: str) -> bool:
        """Whether the coordinator has said that a producer id is that of a transactional id."""
        return self._transactions.get(producer_id) == transactional_id

    def confirm(self, producer_id: int, transactional_id: str, user: str) -> None:
        """The coordinator says that a producer id is that of a transactional id, which the user may use."""
        _put(self._transactions, producer_id, transactional_id)
        _put(self._users, producer_id, user)


class Claim:
    """One client's claims to producer ids.

    Args:
        user: the client's principal.
        transactional_id: that of its request.
    """

    __slots__ = ("_claims", "_transactional_id", "_user")

    def __init__(self, claims: ProducerClaims, user: str, transactional_id: str | None = None) -> None:
        self._claims, self._user, self._transactional_id = claims, user, transactional_id

    def check(self, header: tuple[int, ...]) -> None:
        """Raise as `ProducerClaims.check` if a batch with this header has the producer id of another client."""
        if header[9] >= 0:
            is_transactional = bool(header[5] & TRANSACTIONAL)
            self._claims.check(header[9], self._user, self._transactional_id, is_transactional=is_transactional)

    def use(self, header: tuple[int, ...]) -> None:
        """A batch was appended."""
        if header[9] >= 0:
            self._claims.use(header[9], self._user)


def _put(table: dict[int, str], producer_id: int, value: str) -> None:
    if producer_id not in table and len(table) >= CLAIMS_MAX:
        del table[next(iter(table))]
    table[producer_id] = value
