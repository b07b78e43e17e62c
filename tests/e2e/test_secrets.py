"""A flood by Spark into a cluster with logins: the password stands in none of the texts that people see.

Runs a broker with TLS, logins and permissions; a flood from Spark, and a read of the topic by Spark. Searched: the plans and the
configuration of Spark, its output, the flood's certificate, metadata for Dagster, gates, logs, pages and metrics. A mismatch
means that a reader of a plan or a page can log in.
"""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiokafka.helpers import create_ssl_context

from headgate.assets.metadata import cluster_page, members_table
from headgate.assets.resources import ClusterResource
from headgate.broker.client.access_admin import AccessAdmin, Acl
from headgate.broker.client.gate_admin import GateAdmin
from headgate.pipelines.backfill import Backfill, run
from tests.support.flood_sources import events, write
from tests.support.pki import Authority
from tests.support.secure import Secure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ADMIN, LOADER = "planted-admin-4c1d", "planted-loader-7be2"

pytestmark = pytest.mark.slow


async def _prepare(address: str) -> None:
    async with AccessAdmin(address) as admin:
        await admin.create_user("loader", LOADER)
        rights = [("topic", "*", "all"), ("gate", "*", "all"), ("capacity", "*", "all"), ("cluster", "kafka-cluster", "describe")]
        await admin.add_acls([Acl(resource=kind, name=name, principal="User:loader", operation=one) for kind, name, one in rights])


async def _gates(address: str) -> str:
    async with GateAdmin(address) as gates:
        return repr([*await gates.list(), await gates.layout("secret")])


def test_no_password_stands_in_a_plan_a_page_or_a_log(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "admin").write_text(ADMIN)
    (tmp_path / "loader").write_text(LOADER)
    settings = {"AUTHORIZATION": "acl", "ADMIN_PASSWORD_FILE": str(tmp_path / "admin"), "AUDIT_FILE": str(tmp_path / "audit.log")}
    with Secure(tmp_path, Authority(tmp_path), protocol="SASL_SSL", **settings) as broker:
        broker.start()
        broker.wait_ready()
        asyncio.run(_prepare(broker.address(user="admin", password_file=str(tmp_path / "admin"))))
        address = broker.address(user="loader", password_file=str(tmp_path / "loader"))
        rows = events(200, seed=3)
        source = str(write(tmp_path / "events", rows))
        flood = Backfill(cluster=address, topic="secret", source=source, key="user", value="payload", event_time="at", partitions=1)
        certificate = run(flood, spark)
        assert certificate.complete
        read = spark.read.format("headgate").option("cluster", address).option("subscribe", "secret").load()
        assert read.count() == len(rows)
        read.explain("extended")
        shown = capfd.readouterr()
        assert "Physical Plan" in shown.out
        texts = [shown.out + shown.err, repr(flood), certificate.to_json(), asyncio.run(_gates(address))]
        texts += [repr(spark.sparkContext.getConf().getAll()), repr(read)]
        resource = ClusterResource(address=address)
        texts += [repr(resource), repr(members_table(resource)), repr(cluster_page(resource))]
        texts += [broker.output(), (tmp_path / "audit.log").read_text()]
        context = create_ssl_context(cafile=str(broker.authority.ca))
        for path in ("/", "/metrics", "/api/floods", "/api/cluster"):
            request = urllib.request.Request(f"https://localhost:{broker.http_port}{path}")
            request.add_header("authorization", f"Basic {_basic('admin', ADMIN)}")
            with urllib.request.urlopen(request, context=context, timeout=30) as answer:
                texts.append(answer.read().decode())
        acts = [json.loads(line)["act"] for line in (tmp_path / "audit.log").read_text().splitlines()]
        assert "Gates/FillGate" in acts or "Gates/OpenGate" in acts
    for text in texts:
        assert text and not any(secret in text for secret in (ADMIN, LOADER, _basic("loader", LOADER), _basic("admin", ADMIN)))


def _basic(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()
