"""Generates the Python of the .proto files: ``python -m headgate.broker.wire.grpc.generate``. Needs grpcio-tools; a test fails
on a difference.

Only messages are generated. Services need no generated code: `methods.py` reads them from the descriptors, because the output of
grpcio's own tools refuses to run with a grpcio that is older than the tools.

The .proto files have the names that other languages expect (``headgate/v1/log.proto``), but there is no Python package of that
name at that place, so the imports are rewritten to the files' real place. protobuf's run-time check is relaxed to the minor
version, which is all that protobuf requires (https://protobuf.dev/support/cross-version-runtime-guarantee/). In the stubs, a
field of a message type accepts only messages: the dicts that protobuf also accepts are not offered.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent
PACKAGE = Path("headgate/v1")
PYTHON_PACKAGE = "headgate.broker.wire.grpc.headgate.v1"


def generate() -> dict[Path, str]:
    """Every generated file's text, by its path under this directory. Raises RuntimeError if protoc refuses."""
    from grpc_tools import protoc  # type: ignore[import-untyped]

    protos = sorted(str(path.relative_to(ROOT)) for path in (ROOT / PACKAGE).glob("*.proto"))
    with tempfile.TemporaryDirectory() as target:
        status = protoc.main(["protoc", f"-I{ROOT}", f"--python_out={target}", f"--pyi_out={target}", *protos])
        if status != 0:
            raise RuntimeError(f"protoc failed. status=`{status}`")
        made = sorted(path for path in Path(target).rglob("*") if path.is_file())
        return {path.relative_to(target): _rewritten(path.read_text()) for path in made}


def _rewritten(text: str) -> str:
    text = re.sub(r"^from headgate\.v1 import", f"from {PYTHON_PACKAGE} import", text, flags=re.MULTILINE)
    text = re.sub(r"'headgate\.v1\.(\w+_pb2)'", rf"'{PYTHON_PACKAGE}.\1'", text)
    text = re.sub(r"_Union\[([\w.]+), _Mapping\]", r"\1", text)
    text = re.sub(r"^# Protobuf Python Version: .*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"(Domain\.PUBLIC,\s+\d+,\s+\d+,\s+)\d+,", r"\g<1>0,", text)


def main() -> int:
    for path, text in generate().items():
        (ROOT / path).write_text(text)
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
