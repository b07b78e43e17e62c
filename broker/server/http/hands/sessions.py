"""Logins of people at the page: sessions in memory, and the tokens without which no form is accepted. No I/O.

A session is a random cookie that only this broker knows, so a restart forgets all of them. Its number, its age and its idle time
are bounded. A new login always makes a new cookie: one that a stranger has planted in the browser is worth nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from headgate.broker.server.access.rights import Identity

SESSIONS_MAX = 1_000
"""Most sessions of one broker. Above it the one that was idle for longest ends."""
OF_USER_MAX = 20
"""Most sessions of one user, so that a user who logs in again and again ends no sessions of others."""
SESSION_S = 12 * 3600.0
"""Longest age of a session: a working day."""
IDLE_S = 2 * 3600.0
"""Longest time without a request."""
TOKEN_BYTES = 32


@dataclass(slots=True, eq=False)
class Session:
    """One login. `proof`: what the login was judged by; a session ends when it changes. `until_s`, `seen_s`: on the monotonic
    clock."""

    identity: Identity
    proof: object
    until_s: float
    seen_s: float
    csrf: str


class Sessions:
    """All sessions of one broker, in the order of their last requests.

    Args:
        now_s: a monotonic clock.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._sessions: dict[str, Session] = {}
        self._key = secrets.token_bytes(TOKEN_BYTES)

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, identity: Identity, proof: object) -> str:
        """A new session. Returns its cookie."""
        now_s = self._now_s()
        own = [token for token, session in self._sessions.items() if session.identity.principal == identity.principal]
        if len(own) >= OF_USER_MAX:
            del self._sessions[own[0]]
        if len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        token = secrets.token_urlsafe(TOKEN_BYTES)
        until_s = min(now_s + SESSION_S, identity.expires_s)
        self._sessions[token] = Session(identity, proof, until_s, now_s, secrets.token_urlsafe(TOKEN_BYTES))
        return token

    def find(self, token: str) -> Session | None:
        """The session of a cookie, if it still holds."""
        session = self._sessions.pop(token, None)
        if session is None:
            return None
        now_s = self._now_s()
        if now_s >= session.until_s or now_s - session.seen_s >= IDLE_S:
            return None
        session.seen_s = now_s
        self._sessions[token] = session  # the last one in the order
        return session

    def close(self, token: str) -> None:
        self._sessions.pop(token, None)

    def csrf_of(self, principal: str) -> str:
        """The token for the forms of a person without a session: known by its address, its certificate or its header. Only pages
        of this broker have it, and other websites cannot read them."""
        return hmac.digest(self._key, principal.encode("utf-8", "surrogatepass"), hashlib.sha256).hex()
