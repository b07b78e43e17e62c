"""The audit log: which requests are acts, what a line says, its limits, and its file.

Compared: the acts with what is served; lines as JSON. A mismatch means that an administrator's act leaves no trace, that
a line tells a secret, or that a client can fill the disk.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from headgate.broker.runtime.errors import FatalError
from headgate.broker.server.access import grpc_rules
from headgate.broker.server.audit import grpc_acts
from headgate.broker.server.audit.audit import CHARS_MAX, REFUSALS_MAX, TARGETS_MAX, USERS_MAX, Audit, Caller
from headgate.broker.server.audit.file import AuditFile
from headgate.broker.server.kafka.apis import APIS
from headgate.broker.server.kafka.audited import targets
from headgate.broker.wire.grpc.headgate.v1 import access_pb2, control_pb2, gates_pb2
from tests.unit.access.test_kafka_rules import filled
from tests.unit.access.test_rules import METHODS

SILENT_APIS = {*range(19), 22, 23, 24, 25, 26, 28, 29, 32, 35, 36, 48, 50, 60, 61, 65, 66, 68, 69, 75} - {4, 5, 6, 7}
"""Reads, records, positions, members, transactions of clients, logins."""
SILENT_METHODS = {
    "Admin/Status",
    "Admin/ListTopics",
    "Admin/DescribeTopics",
    "Admin/CheckRecords",
    "Log/InitProducer",
    "Log/Publish",
    "Log/Fetch",
    "Log/ListOffsets",
    "Log/Subscribe",
    "Kafka/Ask",
    "Groups/ListGroups",
    "Groups/DescribeGroups",
    "Capacity/RenewReservation",
    "Capacity/ListReservations",
    "Capacity/GetDesiredBrokers",
    "ExternalScaler/IsActive",
    "ExternalScaler/GetMetricSpec",
    "ExternalScaler/GetMetrics",
    "Control/Join",
    "Control/Commit",
    "Control/Replicate",
    "Control/Surrender",
    "Control/AddToTransaction",
    "Control/WriteMarkers",
    "Control/View",
    "Control/Describe",
    "Gates/RenewGate",
    "Gates/ListGates",
    "Gates/DescribeGate",
    "Gates/Layout",
    "Gates/ReportFlood",
    "Access/ListUsers",
}
"""Reads, records, signs of life, and what brokers do among themselves. Their refusals are noted all the same. `Kafka/Ask`: the
Kafka API that it carries is noted."""
ACTS = [key for key, api in APIS.items() if api.module is not None and api.load().act is not None]
CALLER = Caller(who="User:alice", host="10.0.0.1", door="kafka", client_id="etl")


def test_every_kafka_api_and_grpc_method_is_an_act_or_known_to_be_none() -> None:
    assert not SILENT_APIS & set(ACTS)
    assert APIS.keys() == {*ACTS, *SILENT_APIS}, "decide whether the new API is an administrative act"
    acts = {name for name, rule in grpc_rules.METHODS.items() if rule.act is not None}
    assert not SILENT_METHODS & acts
    assert SILENT_METHODS | acts == {method.short for method in METHODS}, "decide whether the new method is an administrative act"


@pytest.mark.parametrize("key", ACTS)
def test_each_act_of_kafka_names_what_it_is_about(key: int) -> None:
    api = APIS[key]
    request = filled(getattr(import_module(f"headgate.broker.wire.kafka.messages.{api.module}"), f"{api.name}Request"))
    act = api.load().act
    assert act is not None
    names = targets(act, request)
    assert names and all("closed" in name for name in names)


def test_acts_of_grpc_name_what_they_are_about() -> None:
    drain = control_pb2.ReshardRequest(drain=control_pb2.ReshardRequest.Drain(broker_id=3))
    for method, request, names in (
        ("Control/Reshard", drain, ["drain", "broker_id 3"]),
        ("Gates/FillGate", gates_pb2.FillGateRequest(topic="clicks", gate_id="g"), ["clicks", "g"]),
    ):
        assert (act := grpc_rules.METHODS[method].act) is not None and act(request) == names
    gate = gates_pb2.Gate(id="g", digest="d", rows=5, size_bytes=6, files=1, owner="nightly", definition="lake")
    assert grpc_acts.details(gates_pb2.FillGateResponse(gate=gate)) == {
        "gate": "g",
        "origin": "nightly",
        "source": "lake",
        "certificate": {"digest": "d", "rows": 5, "size_bytes": 6, "files": 1},
    }
    assert grpc_acts.details(gates_pb2.OpenGateResponse(gate=gates_pb2.Gate(id="g"))) == {}, "an empty gate is not filled"


class World:
    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000
        self.lines: list[dict[str, Any]] = []
        self.audit = Audit(7, lambda: self.now_ms, lambda row, line: self.lines.append(json.loads(line)))


def test_a_line_says_who_did_what_to_what_from_where_and_how_it_ended() -> None:
    world = World()
    world.audit.did("CreateTopics", CALLER, ["clicks"])
    world.audit.did("DeleteTopics", CALLER, ["clicks"], error="no such topic")
    world.audit.did("AlterConfigs", CALLER, ["clicks"], error="topic_authorization_failed", refused=True)
    base = {"broker": 7, "who": "User:alice", "from": "10.0.0.1", "door": "kafka", "client_id": "etl", "targets": ["clicks"]}
    at = {"time": "2023-11-14T22:13:20.000Z"}
    assert world.lines == [
        {**at, **base, "outcome": "done", "act": "CreateTopics"},
        {**at, **base, "outcome": "failed", "act": "DeleteTopics", "reason": "no such topic"},
        {**at, **base, "outcome": "refused", "act": "AlterConfigs", "reason": "topic_authorization_failed"},
    ]


def test_refusals_are_bounded_and_acts_are_not() -> None:
    world = World()
    for _ in range(REFUSALS_MAX + 30):
        world.audit.refused("Fetch", CALLER, ["closed"], "no permission")
        world.audit.did("CreateTopics", CALLER, ["clicks"])
    outcomes = [line["outcome"] for line in world.lines]
    assert outcomes.count("refused") == REFUSALS_MAX and outcomes.count("done") == REFUSALS_MAX + 30
    world.now_ms += 1000
    world.audit.refused("Fetch", CALLER, ["closed"], "no permission")
    assert world.lines[-2] == {
        "time": "2023-11-14T22:13:21.000Z",
        "broker": 7,
        "outcome": "refused",
        "who": "User:alice",
        "left_out": 30,
    }
    assert world.audit.refusals == REFUSALS_MAX + 31


def test_a_strangers_flood_hides_no_users_refusals_and_its_size_is_told() -> None:
    world = World()
    for number in range(1000):
        world.audit.refused("login", Caller(who="", host=f"10.0.{number % 250}.1", door="http"), [], "wrong")
        world.audit.refused("Fetch", Caller(who="User:ANONYMOUS", host="10.0.0.9", door="grpc"), [], "no permission")
    for number in range(3 * USERS_MAX):
        world.audit.refused("Fetch", replace(CALLER, who=f"User:{number}"), ["closed"], "no permission")
        world.audit.refused("Produce", replace(CALLER, who="User:0"), ["closed"], "no permission")
    whos = Counter(line["who"] for line in world.lines)
    assert whos[""] + whos["User:ANONYMOUS"] == REFUSALS_MAX and whos["User:0"] == REFUSALS_MAX
    assert all(whos[f"User:{number}"] for number in range(USERS_MAX - 1)) and len(world.lines) < 6 * REFUSALS_MAX
    before = len(world.lines)
    world.now_ms += 1000
    world.audit.tell_left_out()
    told = {line["who"]: line["left_out"] for line in world.lines[before:]}
    assert told[""] == 2000 - REFUSALS_MAX and told["User:0"] == 3 * USERS_MAX + 1 - REFUSALS_MAX and "other users" in told


def test_a_new_super_user_is_told() -> None:
    assert grpc_acts.traits(access_pb2.CreateUserRequest(name="a", superuser=True)) == {"superuser": True}
    assert grpc_acts.traits(access_pb2.CreateUserRequest(name="a")) == {}
    assert grpc_acts.traits(gates_pb2.FillGateRequest()) == {}


def test_a_line_is_bounded_whatever_a_client_sends() -> None:
    world = World()
    hostile = Caller(who="User:" + "x" * 9999, host="10.0.0.1", door="kafka", client_id='"\n' * 9999)
    world.audit.did("CreateTopics", hostile, [f"{'y' * 9999}{number}" for number in range(1000)], error="z" * 99_999)
    (line,) = world.lines
    assert len(json.dumps(line)) < (TARGETS_MAX + 5) * (CHARS_MAX * 2) and line["targets_left_out"] == 1000 - TARGETS_MAX
    assert "\n" not in json.dumps(line)


def test_a_file_gets_a_line_each_and_may_be_rotated(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    file = AuditFile(str(path))
    file({"outcome": "done"}, "one")
    file.close()
    file = AuditFile(str(path))
    file({"outcome": "done"}, "two")
    while path.read_text() != "one\ntwo\n":  # a thread writes
        pass
    os.rename(path, tmp_path / "audit.1")
    file({"outcome": "done"}, "three")
    file.close()
    assert (tmp_path / "audit.1").read_text() == "one\ntwo\n" and path.read_text() == "three\n"
    assert path.stat().st_mode & 0o007 == 0, "others may not read it"


@pytest.mark.parametrize("place", ["missing/audit.log", "."])
def test_a_file_that_cannot_be_written_ends_the_start(tmp_path: Path, place: str) -> None:
    with pytest.raises(FatalError, match="audit file"):
        AuditFile(str(tmp_path / place))
