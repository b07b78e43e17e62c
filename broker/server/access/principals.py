"""The principal of a client certificate, by Kafka's mapping rules (`ssl.principal.mapping.rules`)."""

from __future__ import annotations

import re
from collections.abc import Callable

from cryptography import x509

from headgate.broker.runtime.errors import InvalidError, Reason

_RULE = re.compile(r"\s*(?:DEFAULT|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")
REMEMBERED_MAX = 1000


class PrincipalRules:
    """The rules in order; the first that matches the whole distinguished name gives the user's name.

    Args:
        text: ``RULE:pattern/replacement/[LU],...,DEFAULT``. Raises InvalidError(INVALID_CONFIG).
    """

    def __init__(self, text: str) -> None:
        self._rules: list[tuple[re.Pattern[str] | None, str, Callable[[str], str]]] = []
        position = 0
        while position < len(text):
            found = _RULE.match(text, position)
            if found is None:
                raise InvalidError(
                    Reason.INVALID_CONFIG,
                    f"rules are written RULE:pattern/replacement/[LU],DEFAULT. setting=`tls_principal_rules` value=`{text[:200]}`",
                )
            pattern, replacement, case = found.groups()
            change = {"L": str.lower, "U": str.upper}.get(case or "", str)
            try:
                # Kafka writes groups as $1.
                self._rules.append(
                    (None if pattern is None else re.compile(pattern), re.sub(r"\$(\d)", r"\\\1", replacement or ""), change)
                )
            except re.error as error:
                raise InvalidError(Reason.INVALID_CONFIG, f"a rule is no regular expression: {error}. rule=`{pattern}`") from error
            position = found.end()
        self._known: dict[bytes, x509.Certificate] = {}

    def principal(self, certificate: x509.Certificate) -> str:
        """``User:NAME``. Raises InvalidError(NOT_AUTHENTICATED) if no rule matches."""
        name = certificate.subject.rfc4514_string()
        for pattern, replacement, change in self._rules:
            if pattern is None:
                return f"User:{name}"
            found = pattern.fullmatch(name)
            if found is not None:
                return f"User:{change(found.expand(replacement))}"
        raise InvalidError(Reason.NOT_AUTHENTICATED, f"no rule maps the certificate to a user. subject=`{name[:200]}`")

    def certificate(self, data: bytes) -> x509.Certificate:
        """A certificate in PEM or DER, remembered."""
        known = self._known.get(data)
        if known is None:
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            read = x509.load_pem_x509_certificate if data.startswith(b"-----") else x509.load_der_x509_certificate
            known = self._known[data] = read(data)
        return known
