"""The process that registers tables in a catalog of the user's, at low priority; see `catalog_process.py`."""

from __future__ import annotations

import json
import os
import sys
from typing import IO, Any

import msgspec
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError

from headgate.broker.control.catalog_process import Forget, Register, Request

NICENESS = 10


def do(catalog: Any, request: Request) -> None:
    """Do a request with a catalog of PyIceberg. Raises its errors."""
    match request:
        case Register(namespace, name, metadata, prefix):
            table = (*namespace.split("."), name)
            try:
                known = catalog.load_table(table).metadata_location
            except NoSuchTableError:
                catalog.create_namespace_if_not_exists(namespace)
                catalog.register_table(table, metadata)
                return
            if known == metadata:
                return
            if not known.startswith(prefix):
                raise ValueError(f"the catalog has another table of this name: {known}")
            try:
                catalog.register_table(table, metadata, overwrite=True)
            except (NotImplementedError, TableAlreadyExistsError):
                # Such a catalog lacks the table for a moment.
                catalog.drop_table(table)
                catalog.register_table(table, metadata)
        case Forget(namespace, kept, prefix):
            try:
                tables = catalog.list_tables(namespace)
            except NoSuchNamespaceError:
                return
            for table in tables:
                if table[-1] not in kept and catalog.load_table(table).metadata_location.startswith(prefix):
                    catalog.drop_table(table)


def serve(name: str, lines: IO[bytes], answers: IO[bytes]) -> None:
    """Do requests until the other end is closed."""
    catalog: Any = None
    for line in lines:
        try:
            if catalog is None:
                catalog = load_catalog(name)
            do(catalog, msgspec.json.decode(line, type=Request))
            error = ""
        except Exception as found:  # noqa: BLE001 - of any library below PyIceberg; the broker reports it
            error = f"{type(found).__name__}: {' '.join(str(found).split())[:500]}"
        answers.write(json.dumps(error).encode() + b"\n")
        answers.flush()


def main() -> None:
    """Serve the broker at the other end of the pipes. Argument: the name of the catalog."""
    os.nice(NICENESS)
    # What a library prints is no answer.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.argv[1], sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
