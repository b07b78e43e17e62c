"""Dagster: assets, schedules and sensors that plan a flood and bring brokers up for it. Nothing is here yet."""
