"""Optional fields of messages."""

from __future__ import annotations

from google.protobuf.message import Message


def given(message: Message, *names: str) -> dict[str, str]:
    """The optional texts of a message that are set, by field: an empty text is not a missing one."""
    return {name: getattr(message, name) for name in names if message.HasField(name)}
