"""Floods: declarations (`model`, `parse`) and forecasts (`plan`), without Dagster. Pure, except `measure`, which reads the source's
metadata, and `job`."""
