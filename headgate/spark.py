"""Headgate in Spark: backfills by reference, their verification, and the data source ``headgate``.

Needs the extra ``pipelines``: ``pip install 'headgate[pipelines]'``.
"""

from headgate.pipelines.backfill import Backfill, run
from headgate.pipelines.certificate import Certificate
from headgate.pipelines.session import session
from headgate.pipelines.source import HeadgateDataSource, register
from headgate.pipelines.topic import read_topic
from headgate.pipelines.verify import verify

__all__ = ["Backfill", "Certificate", "HeadgateDataSource", "read_topic", "register", "run", "session", "verify"]
