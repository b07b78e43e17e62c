"""The proto packages, laid out as their names say."""
