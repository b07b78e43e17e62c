"""Room in front of a topic, for history that comes later."""

from __future__ import annotations

ROOM = "history.room"
"""Name of the topic setting for room in front."""
ROOM_OFFSETS = 1 << 40
"""Offsets in front of a topic that a flood creates, for older history that comes later: in each partition a hundred years of 300
records a second. Numbers up to 2**53 are exact in JavaScript too."""
