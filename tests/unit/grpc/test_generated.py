"""The checked-in Python of the .proto files against the generator's current output, and the services against their handlers.

A difference means that a .proto file was changed without ``python -m headgate.broker.wire.grpc.generate``, or a generated file
by hand; or that a service has an rpc without a handler.
"""

from __future__ import annotations

import re

from headgate.broker.runtime.config import Settings
from headgate.broker.server.grpc.admin_service import AdminService
from headgate.broker.server.grpc.log_service import LogService
from headgate.broker.wire.grpc import payload
from headgate.broker.wire.grpc.generate import PACKAGE, ROOT, generate
from headgate.broker.wire.grpc.headgate.v1 import admin_pb2, common_pb2, log_pb2
from headgate.broker.wire.grpc.methods import methods

SERVICES = {
    AdminService: admin_pb2.DESCRIPTOR.services_by_name["Admin"],
    LogService: log_pb2.DESCRIPTOR.services_by_name["Log"],
}


def test_generated_files_are_what_the_protos_say() -> None:
    made = generate()
    there = {path.relative_to(ROOT) for path in (ROOT / PACKAGE).iterdir() if "_pb2" in path.name}
    assert there == set(made)
    for path, text in made.items():
        assert (ROOT / path).read_text() == text, f"run `python -m headgate.broker.wire.grpc.generate`: {path} differs"


def test_generated_code_runs_with_every_patch_of_its_protobuf() -> None:
    text = (ROOT / PACKAGE / "log_pb2.py").read_text()
    assert re.search(r"Domain\.PUBLIC,\s+6,\s+\d+,\s+0,", text)


def test_one_package() -> None:
    for file in (common_pb2, admin_pb2, log_pb2):
        assert file.DESCRIPTOR.package == "headgate.v1"
        assert file.DESCRIPTOR.name.startswith("headgate/v1/")


def test_every_rpc_has_its_coroutine_and_no_other() -> None:
    for kind, service in SERVICES.items():
        named = {re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in methods(service)}
        assert named == {name for name in vars(kind) if not name.startswith("_")}


def test_big_fields_have_the_number_that_is_cut_out() -> None:
    for message, field in (
        (log_pb2.PublishRequest, "batch"),
        (log_pb2.FetchResponse, "batches"),
        (log_pb2.SubscribeResponse, "batches"),
    ):
        assert message.DESCRIPTOR.fields_by_name[field].number == payload.FIELD


def test_every_field_with_a_unit_says_it() -> None:
    """Names of numbers that are times or sizes end in their unit."""
    for file in (admin_pb2, log_pb2):
        for message in file.DESCRIPTOR.message_types_by_name.values():
            for field in message.fields:
                if field.type != field.TYPE_BOOL and re.search(r"time|interval|wait|window|uptime|size|credit|memory", field.name):
                    assert re.search(r"_(ms|bytes)$", field.name), f"{message.name}.{field.name}"


def test_limits_of_messages_are_settings() -> None:
    settings = Settings()
    assert settings.message_bytes_max < settings.frame_bytes_max
