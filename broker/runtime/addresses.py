"""Addresses of clients and of files, each in one form. No I/O."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from urllib.parse import unquote

REMEMBERED_MAX = 4096
"""Texts whose meaning is remembered, of addresses and of networks each."""

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def plain(host: str) -> str:
    """An address without the form that a socket gives it: ``::ffff:10.0.0.7`` of a socket for both protocols is ``10.0.0.7``, and
    ``fe80::1%eth0`` is ``fe80::1``. Anything else stays as it is."""
    if ":" not in host:
        return host
    address = _address(host)
    return host if address is None else str(address)


@lru_cache(REMEMBERED_MAX)
def _address(text: str) -> _Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


@lru_cache(REMEMBERED_MAX)
def _network(text: str) -> _Network | None:
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
    mapped = network.network_address.ipv4_mapped if isinstance(network, ipaddress.IPv6Network) else None
    if mapped is None or network.prefixlen < 96:
        return network
    return ipaddress.ip_network((mapped, network.prefixlen - 96))


def is_in(host: str, network: str) -> bool:
    """Whether an address is a given one, or in a network in CIDR form, however either is written."""
    if host == network:
        return True
    address, found = _address(host), _network(network)
    return address is not None and found is not None and address in found


def decoded(url: str) -> str:
    """The URL of a file as the broker opens it: ``%73`` is ``s``."""
    return unquote(url)
