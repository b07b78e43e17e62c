"""SQL over topics, with DuckDB: history from the store's Parquet files and the rest from the brokers, as one cut."""
