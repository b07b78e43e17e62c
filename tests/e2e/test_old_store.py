"""A store that an older broker wrote opens with today's broker.

`tests/fixtures/` holds the store, and its content as the broker of commit 8a825b6 showed it: `tests/support/store_fixture.py`
wrote both with that checkout, whose two brokers were killed at the end. Compared: topics with settings, every record by offset with
time, key, value and headers, a filled gate, positions of a group, and the answer to an idempotent producer's retry.
A mismatch means that an upgrade loses or changes something.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

from tests.support.batches import patched
from tests.support.broker_process import ROOT
from tests.support.store_fixture import Checkout, send

FIXTURES = ROOT / "tests" / "fixtures"
BASE_SEQUENCE_AT = 53
"""Position of the first sequence number in a RecordBatch v2."""


def test_a_store_of_an_older_broker_is_the_same_to_clients(tmp_path: Path) -> None:
    with tarfile.open(FIXTURES / "store.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    expected = json.loads((FIXTURES / "expected.json").read_text())
    last, offset = bytes.fromhex(expected.pop("last_batch")), expected.pop("last_offset")
    today = Checkout(ROOT, "headgate.broker.cli.main", tmp_path / "store", tmp_path / "broker.log")
    with today.broker as broker:
        broker.start()
        broker.wait_ready()
        assert today.content() == expected
        assert send(broker, last) == (0, offset), "the producer's retry is no duplicate any more"
        assert today.content() == expected, "the producer's retry added records"
        following = patched(last, BASE_SEQUENCE_AT, (9).to_bytes(4, "big"))
        assert send(broker, following) == (0, offset + 3), "the producer cannot go on"
        assert broker.terminate() == 0
        broker.check_output()
