"""Large messages are decoded in parts, also those that lie within another one.

A mismatch means that a part is lost or is there twice."""

from __future__ import annotations

import pytest

from headgate.broker.runtime.errors import InvalidError
from headgate.broker.runtime.steps import finish
from headgate.broker.wire.grpc import bounded
from headgate.broker.wire.grpc.headgate.v1 import control_pb2


def test_a_message_within_another_is_decoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "PART_BYTES", 50)
    report = control_pb2.LoadReport(window_ms=500, trouble="none", number=7)
    for number in range(100):
        report.segments.add(segment_id=number, partitions=range(number % 7), bytes_in=range(number % 7))
        report.quotas.add(user=f"u{number}", kind="producer_byte_rate", limit=number)
    message = control_pb2.JoinRequest(report=report)
    data = message.SerializeToString()
    for sent, wanted in (
        (data, message),
        (data + data, control_pb2.JoinRequest.FromString(data + data)),  # a part that comes again is added
        (control_pb2.JoinRequest(hello=control_pb2.Hello(version=1)).SerializeToString() + data, message),  # the last one counts
    ):
        steps = bounded.decoding(control_pb2.JoinRequest, sent, 2_000)
        assert len(sent) > 2_000 and next(steps)
        assert finish(steps) == wanted
    with pytest.raises(InvalidError, match="too many elements"):
        finish(bounded.decoding(control_pb2.JoinRequest, data, 600))
    with pytest.raises(InvalidError, match="cut off"):
        finish(bounded.decoding(control_pb2.JoinRequest, data[:-1], 2_000))
