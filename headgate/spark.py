"""Headgate in Spark: backfills by reference, their verification, and the data source ``headgate``.

Needs the extra ``pipelines``: ``pip install 'headgate[pipelines]'``.
"""

from headgate.broker.runtime.extras import require

require("pipelines", __name__)

from headgate.pipelines.backfill import Backfill, run  # noqa: E402
from headgate.pipelines.certificate import Certificate, PartitionCertificate  # noqa: E402
from headgate.pipelines.progress import Listener, Phase, Progress  # noqa: E402
from headgate.pipelines.session import session  # noqa: E402
from headgate.pipelines.source import HeadgateDataSource, register  # noqa: E402
from headgate.pipelines.topic import read_topic  # noqa: E402
from headgate.pipelines.verify import verify  # noqa: E402

__all__ = [
    "Backfill",
    "Certificate",
    "HeadgateDataSource",
    "Listener",
    "PartitionCertificate",
    "Phase",
    "Progress",
    "read_topic",
    "register",
    "run",
    "session",
    "verify",
]
