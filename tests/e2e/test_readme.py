"""The README's blocks, run in their order as a reader runs them.

Runs: a real broker, the console blocks in a shell, the Python blocks in a Python of their own, the YAML block through the flood
parser. Only the ports differ from the text. `make demo` runs in the slow test; `make up` is the broker that the other blocks
use. A failure means that the README promises something that does not work.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.pipelines.floods.parse import parse
from tests.support import documents
from tests.support.broker_process import HOST, ROOT, BrokerProcess, broker_of_module

README = ROOT / "README.md"
TARGETS = {"make demo", "make up"}
"""Commands that other tests run: they end only by Ctrl-C, or take minutes."""
BYTES_MAX = 12_000


broker = broker_of_module()


def test_the_readme_is_short() -> None:
    assert len(README.read_bytes()) <= BYTES_MAX


def test_every_link_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", README.read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.timeout(600)
def test_every_block_of_the_readme_runs(broker: BrokerProcess, tmp_path: Path) -> None:
    ran = 0
    cluster = {"HEADGATE_CLUSTER": f"{HOST}:{broker.grpc_port}"}
    for language, text in documents.blocks(README):
        text = text.replace("127.0.0.1:9092", broker.bootstrap).replace("127.0.0.1:9095", f"{HOST}:{broker.grpc_port}")
        if language == "yaml":
            assert [flood.name for flood in parse(text, "README.md")] == ["clicks"]
        elif language == "python":
            documents.run([sys.executable, "-c", text], tmp_path, cluster)
        else:
            assert language == "console", f"a block of an unknown language. language=`{language}`"
            for command in documents.commands(text):
                if command not in TARGETS:
                    documents.run(["/bin/sh", "-ec", command], tmp_path, cluster)
        ran += 1
    assert ran >= 8


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_make_demo_runs() -> None:
    done = subprocess.run(["make", "demo"], cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
