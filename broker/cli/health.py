"""``headgate health``: whether this machine's broker serves clients, for health checks of containers and service managers."""

from __future__ import annotations

import http.client
import os
import ssl
import sys
from collections.abc import Sequence

from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import InvalidError, in_words
from headgate.broker.runtime.listeners import WILDCARDS

TIMEOUT_S = 4.0
"""Longest wait for the broker's answer; health checks of containers usually wait 5 s."""
EXIT_UNHEALTHY = 1
"""Also for a wrong setting: Docker reserves 2."""
USAGE = """\
usage: headgate health [--live] [--config FILE] [--SETTING VALUE]...

Ask the broker of this machine whether it serves clients (/readyz), or with --live whether it runs (/healthz). The HTTP port, its
address and TLS follow from the broker's own settings: give the same ones, on the command line, in the environment or by --config.
No login is needed. Exit code: 0 yes, 1 no (the reason is on stderr).
"""


def run_health(arguments: Sequence[str]) -> int:
    """Ask the broker that these settings start. Returns the exit code."""
    if "--help" in arguments or "-h" in arguments:
        sys.stdout.write(USAGE)
        return 0
    path = "/healthz" if "--live" in arguments else "/readyz"
    try:
        settings = Settings.load([argument for argument in arguments if argument != "--live"], os.environ)
    except InvalidError as error:
        return _unhealthy(error.message)
    host = WILDCARDS.get(settings.host, settings.host)
    place = f"broker=`{host}:{settings.http_port}`"
    try:
        status, text = _ask(host, settings.http_port, path, bool(settings.tls_certificate))
    except (OSError, http.client.HTTPException) as error:
        return _unhealthy(f"the broker does not answer: {in_words(error)}. {place}")
    if status == http.client.OK:
        sys.stdout.write(text)
        return 0
    return _unhealthy(f"{text.strip()}. {place}")


def _ask(host: str, port: int, path: str, is_tls: bool) -> tuple[int, str]:
    """The status and text of a page, with TLS or without, whichever the port speaks. Raises OSError, http.client.HTTPException."""
    try:
        return _get(host, port, path, is_tls)
    except (ssl.SSLError, ConnectionResetError, http.client.BadStatusLine):
        # A broker's TLS may be set on its command line only, which this process does not see.
        return _get(host, port, path, not is_tls)


def _get(host: str, port: int, path: str, is_tls: bool) -> tuple[int, str]:
    connection: http.client.HTTPConnection
    if is_tls:
        # Not verified, as kubelets do: the certificate names other hosts than this address, nothing secret is sent, and a restart
        # does not help a broker whose certificate has expired.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        answer = connection.getresponse()
        return answer.status, answer.read(1000).decode(errors="replace")
    except TimeoutError as error:
        raise OSError(f"no answer within {TIMEOUT_S:.0f} s") from error
    finally:
        connection.close()


def _unhealthy(reason: str) -> int:
    sys.stderr.write(f"headgate health: {reason}\n")
    return EXIT_UNHEALTHY
