"""Dataclasses of the client from messages by the names of their fields, where mypy does not compare the names. A mismatch means
that a call of the client fails, or that a missing value looks like a 0."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import Message

from headgate.broker.client import types
from headgate.broker.client.control import QuotaUse, Reservation
from headgate.broker.client.file_ref import FileRef
from headgate.broker.client.gate_admin import GateWindow
from headgate.broker.client.group_admin import GroupMember, GroupPosition, GroupSummary
from headgate.broker.client.rows import from_row, from_rows
from headgate.broker.wire.grpc.headgate.v1 import admin_pb2, capacity_pb2, control_pb2, gates_pb2, groups_pb2


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        (types.Broker, admin_pb2.Broker()),
        (types.ConfigEntry, admin_pb2.ConfigEntry()),
        (types.UnreadableBatch, admin_pb2.CheckRecordsResponse.Unreadable()),
        (QuotaUse, control_pb2.QuotaUse()),
        (Reservation, capacity_pb2.Reservation()),
        (FileRef, gates_pb2.FileRef()),
        (GateWindow, gates_pb2.GateWindow()),
        (GroupSummary, groups_pb2.Group()),
        (GroupMember, groups_pb2.Member()),
        (GroupPosition, groups_pb2.GroupPosition()),
    ],
)
def test_the_message_has_every_field(kind: Any, row: Message) -> None:
    assert from_rows(kind, [row]) == (from_row(kind, row),)


def test_a_missing_value_is_none_and_a_given_one_is_kept() -> None:
    row = groups_pb2.GroupPosition(offset=0)
    position = from_row(GroupPosition, row, topic="orders")
    assert (position.topic, position.offset, position.lag_records) == ("orders", 0, None)
