"""SQL over a topic in a bucket, and over one of a cluster with TLS, users and rules.

Compared: rows of queries with records that were written. A mismatch means that a query reaches less than other commands do.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import headgate
from headgate.broker.runtime.errors import HeadgateError, Reason
from tests.support import mixed_topic
from tests.support.broker_process import BrokerProcess
from tests.support.errors import raises
from tests.support.mixed_topic import consumed, sums
from tests.support.pki import Authority
from tests.support.s3_server import S3Server
from tests.support.secure import Secure


def test_files_in_a_bucket_are_read_from_it(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    store = f"s3://{s3_server.bucket()}/sql?endpoint={s3_server.endpoint}"
    quick = {**s3_server.environment, **mixed_topic.ENV, "HEADGATE_WAL_FLUSH_INTERVAL_MS": "10"}
    with BrokerProcess(store, tmp_path / "broker.log", env=quick) as broker:
        broker.start()
        broker.wait_ready()
        topic = mixed_topic.make(broker, "clicks")
        result = headgate.sql("SELECT * EXCLUDE timestamp_type FROM clicks", cluster=topic.grpc)
        assert sums(result.read_all()) == sums(consumed(broker, topic.name))
        assert result.reads.files == result.reads.files_known > 12 and result.reads.broker_rows > 9
        topic.close()
    broker.check_output()


def test_tls_users_and_rules(tmp_path: Path) -> None:
    (tmp_path / "admin").write_text("a long password of the administrator")
    (tmp_path / "wrong").write_text("another password")
    with Secure(
        tmp_path, Authority(tmp_path), protocol="SASL_SSL", AUTHORIZATION="acl", ADMIN_PASSWORD_FILE=str(tmp_path / "admin")
    ) as broker:
        broker.start()
        broker.wait_ready()
        address = broker.address(user="admin", password_file=str(tmp_path / "admin"))
        assert headgate.sql("SELECT 1 AS one", cluster=address).read_all().to_pylist() == [{"one": 1}]
        with raises(HeadgateError, Reason.NOT_AUTHENTICATED):
            headgate.sql("SELECT 1", cluster=broker.address(user="admin", password_file=str(tmp_path / "wrong")))
    broker.check_output()
