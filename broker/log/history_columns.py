"""History as columns: rows of a table to batches and back, and the sum that shows whether two copies hold the same rows.

This module is the entry to `column_schema.py`, `column_encoder.py`, `column_decoder.py` and `column_checksum.py`. It imports
numpy and pyarrow: import it inside functions, not at the top of a module on the way to a broker's first answer.
"""

from __future__ import annotations

from headgate.broker.log.column_checksum import checksum
from headgate.broker.log.column_decoder import decode_batches, timestamp_types
from headgate.broker.log.column_encoder import BATCH_BYTES_MAX, encode_batches
from headgate.broker.log.column_schema import HEADERS_TYPE, SCHEMA, TIMESTAMP_MS_MAX, check_columns
from headgate.broker.log.column_varints import BATCH_ROWS_MAX

__all__ = [
    "BATCH_BYTES_MAX",
    "BATCH_ROWS_MAX",
    "HEADERS_TYPE",
    "SCHEMA",
    "TIMESTAMP_MS_MAX",
    "check_columns",
    "checksum",
    "decode_batches",
    "encode_batches",
    "timestamp_types",
]
