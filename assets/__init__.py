"""Dagster: floods as assets, with checks, schedules, sensors and fleets. README.md has usage and decisions."""
