"""Five cron fields: minute, hour, day of the month, month, day of the week; or a name for them such as `@daily`. Pure: no clock.

As in crontab(5): lists, ranges, steps, names; when neither day field is `*`, either may match (`*/2` too, as in Dagster); 7 is
Sunday too. A local time that does not exist (the clock is put forward) has no occurrence; a time that exists twice has one, the
first. Dagster's scheduler, which starts the floods, postpones the former and uses the second of the latter; brokers are not
raised ahead then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_LOOKAHEAD_DAYS = 366 * 8
"""Search limit in years: 29 February may be eight years away."""


@dataclass(frozen=True, slots=True)
class Cron:
    """A repeated event."""

    text: str
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool

    @classmethod
    def parse(cls, text: str) -> Cron:
        """Parse five fields or a name; `text` is then the five fields. Raises ValueError with the expected form."""
        text = _NAMED.get(text.strip().lower(), text)
        fields = text.split()
        if len(fields) != 5:
            raise ValueError("five fields (minute hour day month weekday), such as `0 6 * * *`, or `@hourly`, `@daily`, `@weekly`")
        minutes = _field(fields[0], "minute", 0, 59)
        hours = _field(fields[1], "hour", 0, 23)
        days = _field(fields[2], "day of the month", 1, 31)
        months = _field(fields[3], "month", 1, 12, _MONTHS)
        weekdays = frozenset(day % 7 for day in _field(fields[4], "day of the week", 0, 7, _DAYS))
        either = "*" not in (fields[2], fields[4])
        cron = cls(text, minutes, hours, days, months, weekdays, either)
        if next(cron._dates(date(2023, 1, 1)), None) is None:
            raise ValueError("a day that exists")
        return cron

    def after(self, moment: datetime, zone: str = "UTC") -> Iterator[datetime]:
        """Occurrences after a moment (aware), in order, in UTC, without end."""
        place = ZoneInfo(zone)
        for day in self._dates(moment.astimezone(place).date()):
            found = set()
            for hour in self.hours:
                for minute in self.minutes:
                    local = datetime.combine(day, time(hour, minute), place)
                    instant = local.astimezone(UTC)
                    if instant > moment and instant.astimezone(place).replace(tzinfo=None) == local.replace(tzinfo=None):
                        found.add(instant)
            yield from sorted(found)

    def _dates(self, first: date) -> Iterator[date]:
        idle = 0
        day = first
        while idle <= _LOOKAHEAD_DAYS:
            if self._matches(day):
                idle = 0
                yield day
            idle += 1
            day += timedelta(days=1)

    def _matches(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        in_month, in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return in_month or in_week if self.either_day else in_month and in_week


def _field(text: str, name: str, low: int, high: int, words: tuple[str, ...] = ()) -> frozenset[int]:
    expected = f"{name} between {low} and {high} (`*`, `5`, `1-5`, `*/15`, lists with commas)"

    def number(part: str) -> int:
        if part.lower() in words:
            return words.index(part.lower()) + (low if low == 1 else 0)
        if not (part.isascii() and part.isdigit()) or not low <= int(part) <= high:
            raise ValueError(expected)
        return int(part)

    found: set[int] = set()
    for part in text.split(","):
        span, slash, step_text = part.partition("/")
        step = int(step_text) if step_text.isascii() and step_text.isdigit() and len(step_text) < 4 else 0
        if slash and step < 1:
            raise ValueError(expected)
        if span == "*":
            first, last = low, high
        else:
            begin, dash, end = span.partition("-")
            first = number(begin)
            last = number(end) if dash else (high if slash else first)
        if first > last:
            raise ValueError(expected)
        found.update(range(first, last + 1, step or 1))
    return frozenset(found)
