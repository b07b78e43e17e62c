"""Logs are events with fields: ``log.info("wal_chunk_sealed", chunk=7, size_bytes=134217728)``.

A thin layer on the standard library: importing it costs nothing, and events of third-party loggers (botocore, grpc, uvicorn)
have the same shape. Field values are numbers, short strings, ids, errors; never payloads, keys of records or credentials.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TextIO

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("auto", "json", "text")
VALUE_CHARS_MAX = 500
"""A longer field value is cut: a hostile client must not be able to fill a disk through the log."""


class EventLog:
    """Logs events under one logger name. Made once per module: ``logger = get_logger(__name__)``."""

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, **fields: object) -> None:
        """An event that helps a developer to find a fault. Off by default."""
        if self._logger.isEnabledFor(logging.DEBUG):
            self._logger.debug(event, extra={"fields": fields})

    def info(self, event: str, **fields: object) -> None:
        """A step in the life of the process: rare, never once per request."""
        if self._logger.isEnabledFor(logging.INFO):
            self._logger.info(event, extra={"fields": fields})

    def warning(self, event: str, **fields: object) -> None:
        """A handled fault; an operator may want to know it."""
        self._logger.warning(event, extra={"fields": fields})

    def error(self, event: str, **fields: object) -> None:
        """A failure that an operator must act on."""
        self._logger.error(event, extra={"fields": fields})

    def exception(self, event: str, error: BaseException, **fields: object) -> None:
        """An unexpected error, with its traceback."""
        self._logger.error(event, extra={"fields": fields}, exc_info=error)


def get_logger(name: str) -> EventLog:
    """The event log of a module; `name` is its ``__name__``, or one word such as ``engine``."""
    return EventLog(logging.getLogger(name if name.startswith("headgate.") else f"headgate.{name}"))


def configure(level: str = "info", format: str = "auto", stream: TextIO | None = None) -> None:
    """Send every log line of the process to `stream` (default stderr).

    Args:
        level: one of `LEVELS`, for Headgate's own events; events of third parties are logged from ``warning`` on.
        format: ``text``, ``json`` (one object a line), or ``auto``: text on a terminal, JSON otherwise.
    """
    assert level in LEVELS and format in FORMATS, (level, format)
    out = stream if stream is not None else sys.stderr
    as_json = format == "json" or (format == "auto" and not out.isatty())
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("headgate").setLevel(level.upper())
    logging.raiseExceptions = False  # a closed stderr must not end the process, and must not be reported to itself


class TextFormatter(logging.Formatter):
    """``2026-11-21T01:50:00.123Z info    broker_serving kafka=127.0.0.1:9092`` ."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_timestamp(record.created)} {record.levelname.lower():<7} {record.getMessage()}"
        for name, value in _fields(record).items():
            text = _cut(value)
            line += f" {name}={text!r}" if not text or not text.isprintable() or " " in text or "=" in text else f" {name}={text}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: timestamp, level, logger, event, then the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        import json

        row: dict[str, object] = {
            "timestamp": _timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        for name, value in _fields(record).items():
            row[name] = value if value is None or isinstance(value, bool | int | float) else _cut(value)
        if record.exc_info:
            row["exception"] = self.formatException(record.exc_info)
        return json.dumps(row)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = getattr(record, "fields", {})
    return fields


def _cut(value: object) -> str:
    text = str(value)
    return text if len(text) <= VALUE_CHARS_MAX else text[:VALUE_CHARS_MAX] + "..."


def _timestamp(seconds: float) -> str:
    whole = int(seconds)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{int((seconds - whole) * 1000):03d}Z"
