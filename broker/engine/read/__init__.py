"""The read path: records from memory, chunks and Parquet files."""
