"""Logs for people: entries as text instead of JSON, without stack frames; excerpts omit repeated lines."""

import json
from collections.abc import Iterable
from typing import Any, Final

EXCERPT_LINES: Final = 10
LINE_CHARACTERS: Final = 240
MAX_LINES_READ: Final = 400  # raw lines, from the end of a log
_TECHNICAL: Final = frozenset({"event", "level", "timestamp", "service", "logger", "exception", "stack"})
_TRACE: Final = (
    "Traceback (most recent call last)",
    "During handling of the above",
    "The above exception was",
)


def log_excerpt(text: str, lines: int = EXCERPT_LINES) -> tuple[str, ...]:
    """Return the last lines of a log in readable form; of repeated lines only the last one."""
    excerpt: list[str] = []
    messages: list[str] = []  # the same without timestamps
    for line in text.splitlines()[-MAX_LINES_READ:]:
        for time, message in _render(line):
            if time and message in messages:  # a repeated line is shown once, at its last occurrence
                index = messages.index(message)
                del messages[index], excerpt[index]
            messages.append(message)
            excerpt.append(f"{time}{message}"[:LINE_CHARACTERS])
    return tuple(excerpt[-lines:])


def readable(text: str) -> tuple[str, ...]:
    """Return all lines of a log in readable form: without JSON and stack frames."""
    return tuple(f"{time}{message}" for line in text.splitlines() for time, message in _render(line))


def _render(line: str) -> Iterable[tuple[str, str]]:
    """Yield (time, message) for a line of a log; nothing for a line of a stack trace."""
    try:
        entry = json.loads(line)
    except ValueError:
        entry = None
    if isinstance(entry, dict):
        yield from _rendered_entry(entry)
    elif line.strip() and not line[0].isspace() and not line.startswith(_TRACE):
        yield "", line.rstrip()


def _rendered_entry(entry: dict[str, Any]) -> Iterable[tuple[str, str]]:
    time = str(entry.get("timestamp", ""))[11:19]
    facts = "".join(
        f" {name}={value}"
        for name, value in entry.items()
        if name not in _TECHNICAL and value not in (None, "")
    )
    level = str(entry.get("level", "info"))
    mark = "" if level == "info" else f"{level}: "
    yield f"{time} " if time else "", f"{mark}{entry.get('event', '')}{facts}"
    last = str(entry.get("exception") or "").rstrip().rpartition("\n")[2]
    if last:
        yield f"{time} " if time else "", f"{mark}{last}"
