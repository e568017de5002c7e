"""Schedules of flows: cron expressions in UTC, and when one fires.

An expression has five fields (minute, hour, day of the month, month, day of the week) with `*`, lists, ranges, steps
and names, or is a macro such as `@daily`. If both fields for days are restricted, either may match; one that begins
with `*` is not restricted. Both 0 and 7 are Sunday.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Final

from cronsim import CronSim, CronSimError

from odf_common.errors import InvalidInput, nearest
from odf_common.metadata.scalars import Timestamp

MACROS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "@yearly": "0 0 1 1 *",
        "@annually": "0 0 1 1 *",
        "@monthly": "0 0 1 * *",
        "@weekly": "0 0 * * 0",
        "@daily": "0 0 * * *",
        "@midnight": "0 0 * * *",
        "@hourly": "0 * * * *",
    }
)
FIELDS: Final = ("minute", "hour", "day of the month", "month", "day of the week")
MAX_CHARACTERS: Final = 256
# The library has more forms, such as seconds and L; this is the part that all implementations of cron share.
_ITEM: Final = r"(?:\*|[0-9]{1,2}|[A-Z]{3})(?:-(?:[0-9]{1,2}|[A-Z]{3}))?(?:/[0-9]{1,2})?"
_FIELD: Final = re.compile(rf"{_ITEM}(?:,{_ITEM})*", re.IGNORECASE | re.ASCII)
# The library reads 5-5/2, which is 5, as 5-59/2.
_RANGE_OF_ONE: Final = re.compile(r"\b([0-9A-Z]+)-\1/[0-9]+", re.IGNORECASE | re.ASCII)
_SECOND: Final = timedelta(seconds=1)
_EPOCH: Final = Timestamp(0)


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """The times of a cron expression."""

    text: str

    def __post_init__(self) -> None:
        fields = self.expression.split()
        if len(fields) != len(FIELDS) or len(self.text) > MAX_CHARACTERS:
            raise InvalidInput(text=self._problem(f"expected the five fields {', '.join(FIELDS)}"))
        for name, field in zip(FIELDS, fields, strict=True):
            if not _FIELD.fullmatch(field):
                raise InvalidInput(text=self._problem(f"cannot read the {name} {field!r}"))
        try:
            next(CronSim(self.expression, _EPOCH.datetime()))
        except CronSimError as error:
            raise InvalidInput(text=self._problem(str(error).lower())) from error
        except StopIteration:
            raise InvalidInput(text=self._problem("no day ever matches")) from None

    @property
    def expression(self) -> str:
        """Return the five fields that a macro stands for; raises `InvalidInput` for an unknown one."""
        text = self.text.strip()
        if not text.startswith("@"):
            return _RANGE_OF_ONE.sub(r"\1", text)
        if text == "@reboot":
            raise InvalidInput(
                text=self._problem("a flow has no start of a machine to run at; choose a time")
            )
        if text not in MACROS:
            similar = nearest(text, MACROS)
            hint = f"did you mean {similar}?" if similar else f"expected one of {', '.join(MACROS)}"
            raise InvalidInput(text=self._problem(f"unknown macro; {hint}"))
        return MACROS[text]

    def next_after(self, time: Timestamp) -> Timestamp:
        """Return the first time that is later."""
        return Timestamp.from_datetime(next(CronSim(self.expression, time.datetime())))

    def latest_until(self, time: Timestamp) -> Timestamp:
        """Return the last time that is not later."""
        whole = time.datetime().replace(microsecond=0)
        return Timestamp.from_datetime(next(CronSim(self.expression, whole + _SECOND, reverse=True)))

    def __str__(self) -> str:
        """Return the expression as it was written."""
        return self.text

    def _problem(self, text: str) -> str:
        return f"{self.text!r} is not a schedule: {text}"


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """The result of looking at a schedule."""

    handled_until: Timestamp
    """The new state: times up to this one have fired, or were before the schedule."""
    firing: Timestamp | None
    """The time for which the flow runs now; None: it does not."""
    wake_at: Timestamp


def advance_schedule(schedule: CronSchedule, handled_until: Timestamp, now: Timestamp) -> ScheduleStep:
    """Return whether a schedule fires: once, for the latest time, if several were missed while the node was down."""
    due = schedule.next_after(handled_until)
    if due > now:  # a clock that was set back fires nothing again
        return ScheduleStep(handled_until, None, due)
    latest = schedule.latest_until(now)
    return ScheduleStep(latest, latest, schedule.next_after(now))
