"""The event time of records that have none: from metadata, a path, or the clock (spec: EventTimeSource)."""

import re
from functools import singledispatch
from typing import Final

import pyarrow as pa

from odf_common.data.time_format import named_format, require_timestamp_format
from odf_common.errors import InvalidInput
from odf_common.metadata.fetching import (
    EventTimeSource,
    EventTimeSourceFromMetadata,
    EventTimeSourceFromPath,
    EventTimeSourceFromSystemTime,
)
from odf_common.metadata.scalars import Timestamp
from odf_ingest.read.types.times import to_timestamps

WHERE: Final = "fetch.eventTime"
MAX_PATTERN_CHARACTERS: Final = 1000


@singledispatch
def event_time(source: EventTimeSource, path: str, modified: Timestamp | None, now: Timestamp) -> Timestamp:
    """Return the event time of what is at `path`, last `modified` then (None: unknown). Raises `InvalidInput`."""
    raise TypeError(source)


@event_time.register
def _from_metadata(
    _: EventTimeSourceFromMetadata, path: str, modified: Timestamp | None, now: Timestamp
) -> Timestamp:
    del now
    if modified is None:
        text = f"{path} has no time of last modification; use FromPath or FromSystemTime"
        raise InvalidInput(where=WHERE, text=text)
    return modified


@event_time.register
def _from_system_time(
    _: EventTimeSourceFromSystemTime, path: str, modified: Timestamp | None, now: Timestamp
) -> Timestamp:
    del path, modified
    return now


@event_time.register
def _from_path(
    source: EventTimeSourceFromPath, path: str, modified: Timestamp | None, now: Timestamp
) -> Timestamp:
    del modified, now
    match = _pattern(source.pattern).search(path)
    text = None if match is None else match.group(1)
    if not text:
        raise InvalidInput(where=WHERE, text=f"{path} does not match the pattern {source.pattern!r}")
    _require_format(source.timestamp_format)
    try:
        (timestamp,) = to_timestamps(pa.array([text]), named_format(source.timestamp_format)).cast(
            pa.timestamp("ns", "UTC")
        )
    except (InvalidInput, pa.ArrowException) as error:
        how = "RFC 3339 or a date" if source.timestamp_format is None else repr(source.timestamp_format)
        raise InvalidInput(
            where=WHERE, text=f"{text!r} in {path} is not a time in the format {how}"
        ) from error
    return Timestamp(timestamp.value)


def _require_format(text: str | None) -> None:
    try:
        require_timestamp_format(text)
    except InvalidInput as error:
        raise InvalidInput(where=f"{WHERE}.timestampFormat", text=str(error)) from error


def _pattern(text: str) -> re.Pattern[str]:
    if len(text) > MAX_PATTERN_CHARACTERS:
        raise InvalidInput(where=f"{WHERE}.pattern", text=f"longer than {MAX_PATTERN_CHARACTERS} characters")
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise InvalidInput(where=f"{WHERE}.pattern", text=f"not a regular expression: {error}") from error
    if not pattern.groups:
        raise InvalidInput(where=f"{WHERE}.pattern", text="has no group around the timestamp: write (…)")
    return pattern


def usual_event_time(modified: Timestamp | None, now: Timestamp) -> Timestamp:
    """Return the event time without a declared source: the time of last modification, or now if that is unknown."""
    return now if modified is None else modified
