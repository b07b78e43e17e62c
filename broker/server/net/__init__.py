"""Ports, TLS and its handshake: what every protocol of the server stands on."""
