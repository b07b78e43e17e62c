"""Topics as Iceberg tables (format v2): the content of metadata files, manifest lists and manifests. No I/O."""
