"""`odf logs`: the last lines that the parts of the node have logged, and those that follow."""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import click

from odf_cli.embedded.parts.log_excerpt import readable
from odf_cli.output import echo
from odf_cli.user_input import Count
from odf_common.errors import NotFound, nearest
from odf_common.service.settings import load

FOLLOW_SECONDS: Final = 0.5
READ_BYTES_PER_LINE: Final = (
    256  # so much of a log's end is read for each wanted line, and then more if that is not enough
)
LOG_SUFFIX: Final = ".log"


class NoLog(NotFound):
    """A part has no log in the home."""

    ADVICE = "`odf up` writes logs to $ODF_HOME/logs; with containers, see `docker compose logs`"


def complete_part(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the parts with a log whose names begin like that."""
    return [name for name in _logs() if name.startswith(incomplete)]


@click.command("logs")
@click.argument("parts", nargs=-1, metavar="[PART]...", shell_complete=complete_part)
@click.option(
    "-n",
    "--lines",
    type=Count(0),
    default=20,
    show_default=True,
    help="Maximum number of lines of each part.",
)
@click.option("-f", "--follow", is_flag=True, help="Print new lines until interrupted.")
@click.option("--raw", is_flag=True, help="Print lines as they are stored: JSON, with stack traces.")
def command(*, parts: tuple[str, ...], lines: int, follow: bool, raw: bool) -> None:
    """Print the end of the logs of the node's parts, each line with its part; by default of all parts.

    Older lines are in the files, $ODF_HOME/logs.

    \b
    Example:
      odf logs
      odf logs ingest -n 100
      odf logs coordinator engine-spark --follow
    """
    logs = _select_logs(parts)
    ends = {}
    for part, file in logs.items():
        last, ends[part] = _last_lines(file, lines, is_raw=raw)
        _print(part, last)
    while follow:
        time.sleep(FOLLOW_SECONDS)
        for part, file in logs.items():
            is_emptied = file.stat().st_size < ends[part]  # since it was too long
            text, ends[part] = _whole_lines(file, 0 if is_emptied else ends[part])
            _print(part, _lines(text, is_raw=raw))


def _logs() -> Mapping[str, Path]:
    files = sorted((load().home / "logs").glob(f"*{LOG_SUFFIX}"))
    return {file.name.removesuffix(LOG_SUFFIX): file for file in files}


def _select_logs(parts: Sequence[str]) -> Mapping[str, Path]:
    """Return the logs of these parts, or of all; raises `NoLog`."""
    logs = _logs()
    for part in parts:
        if part not in logs:
            near = nearest(part, logs)
            raise NoLog(what=f"a log of {part!r}{f' (did you mean {near}?)' if near else ''}")
    if not logs:
        raise NoLog(what=f"a log in {load().home / 'logs'}")
    return {part: logs[part] for part in parts or logs}


def _last_lines(file: Path, count: int, *, is_raw: bool) -> tuple[Sequence[str], int]:
    """Return up to `count` lines, and where the last one of them ends."""
    size = file.stat().st_size
    length = max(count, 1) * READ_BYTES_PER_LINE
    while True:
        text, end = _whole_lines(file, max(0, size - length))
        lines = _lines(text, is_raw=is_raw)
        if len(lines) >= count or length >= size:
            return lines[len(lines) - count :] if len(lines) > count else lines, end
        length *= 4


def _whole_lines(file: Path, start: int) -> tuple[str, int]:
    """Return the lines that begin after `start` and have ended, and where the last one of them ends."""
    with file.open("rb") as opened:
        opened.seek(max(0, start - 1))
        if start > 0:
            start += len(opened.readline()) - 1  # the rest of a line, or the end of the one before
        content = opened.read()
    whole = content[: content.rfind(b"\n") + 1]
    return whole.decode(errors="replace"), start + len(whole)


def _lines(text: str, *, is_raw: bool) -> Sequence[str]:
    return text.splitlines() if is_raw else readable(text)


def _print(part: str, lines: Iterable[str]) -> None:
    for line in lines:
        echo(f"{part}: {line}")
