"""Printing: results on stdout as table, JSON or YAML; progress, remarks and questions on stderr.

Tables fit the terminal (`layout`); a pipe gets them whole. Colours only on a terminal, and not with NO_COLOR.
"""

import base64
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from enum import Enum
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

import click

from odf_common.metadata.scalars import Timestamp

if TYPE_CHECKING:
    from rich.progress import Progress

    from odf_common.runtime.layout import Layout

F = TypeVar("F", bound=Callable[..., Any])
FORMATS: Final = ("table", "json", "yaml")
WIDE: Final = 60  # characters of a text in a table
COLOURED: Final = ("verdict", "state")
COLOURS: Final = {
    **dict.fromkeys(
        ("valid", "ready", "reading", "updated", "rebuilt", "restored", "up-to-date", "committed"), "green"
    ),
    **dict.fromkeys(("invalid", "failed", "stopped", "stuck"), "red"),
}  # anything else is yellow
_UNSAFE: Final = re.compile(r"[\x7f-\x9f\u2028\u2029]")  # JSON allows them as they are, terminals obey some
_WIDE_KEY: Final = "odf_common.wide"
_HASH: Final = re.compile(r"\b(f1620[0-9a-f]{8})[0-9a-f]{56}\b")  # enough of one to be told from others


def output_option(command: F) -> F:
    """Add `--output table|json|yaml` to a command, which arrives as the parameter `output`, and `--wide`."""
    form = click.option(
        "-o",
        "--output",
        type=click.Choice(FORMATS),
        default="table",
        show_default=True,
        help="Form of the result.",
    )
    wide = click.option(
        "-w",
        "--wide",
        is_flag=True,
        expose_value=False,
        callback=_keep_wide,
        help="Print tables in full width: nothing is cut short or left out.",
    )
    return form(wide(command))


def is_wide() -> bool:
    """Return whether the command that runs was given `--wide`."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_WIDE_KEY))


def print_rows(
    rows: Sequence[Mapping[str, object]],
    output: str,
    *,
    columns: Sequence[str] = (),
    extra: Sequence[str] = (),
) -> None:
    """Print rows: one array of objects, or a table with these columns (all of the first row by default).

    Columns of `extra` are left out, with a remark, where the terminal has no room for them.
    """
    if output == "table":
        _print_table(rows, columns or tuple(rows[0] if rows else ()), extra)
    else:
        _print_plain([plain(row) for row in rows], output)


def print_object(value: Mapping[str, object], output: str) -> None:
    """Print one object; as a table, a line for each field."""
    if output == "table":
        from odf_common.runtime.layout import fields_of  # noqa: PLC0415 - only when there is something to show

        for line in fields_of({name: _cell(held) for name, held in value.items()}, _width()):
            click.echo(line)
    else:
        _print_plain(plain(value), output)


def confirm(question: str) -> None:
    """Ask a person; raises `Declined` unless the answer is yes, and `UsageError` where nobody can be asked."""
    try:
        is_agreed = click.confirm(question, err=True)
    except click.Abort as error:
        if not isinstance(error.__context__, EOFError):
            raise  # Ctrl-C
        click.echo(err=True)
        raise click.UsageError("there is nobody to ask; give --yes") from error
    if not is_agreed:
        raise Declined("nothing was changed")


class Declined(click.ClickException):
    """A person answered no: nothing was done, and the exit code is 1."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Say that nothing was changed."""
        click.echo(self.format_message(), file=file, err=file is None)


def shortened(rows: Sequence[Mapping[str, object]], column: str) -> list[dict[str, object]]:
    """Return rows for a table: the texts of one column end after `WIDE` characters, and hashes earlier."""
    return [
        {**row, column: short(held)} if isinstance(held := row.get(column), str) else {**row} for row in rows
    ]


def print_text(text: str) -> None:
    """Print a paragraph, broken between words where the terminal ends; further lines are indented as the first."""
    from odf_common.runtime.layout import paragraph  # noqa: PLC0415 - only when there is something to show

    for line in paragraph(text, _width()):
        click.echo(line)


def of_dataset(name: str, error: str) -> str:
    """Return an error with the name of its dataset before it, unless it begins with that itself."""
    is_named = error.startswith((f"{name} ", f"{name}:", f"the data of {name} "))
    return error if is_named else f"{name}: {error}"


def remark(text: str) -> None:
    """Tell the person something that is not the result."""
    click.echo(text, err=True)


@contextmanager
def progress() -> Iterator["Progress"]:
    """Show progress bars on stderr while the block runs; nothing when that is not a terminal."""
    from rich.console import Console  # noqa: PLC0415 - only when there is something to show
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415
    from rich.table import Column  # noqa: PLC0415

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bars:
        yield bars


def plain(value: object) -> Any:  # noqa: ANN401 - JSON
    """Return what JSON can hold: times as RFC 3339 in UTC, exact numbers and odd ones as text, bytes as base64."""
    match value:
        case Mapping():
            return {str(key): plain(held) for key, held in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(held) for held in value]
        case Enum():
            return plain(value.value)
        case _:
            return _scalar(value)


def _scalar(value: object) -> Any:  # noqa: ANN401 - JSON
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case datetime():
            return str(Timestamp.from_datetime(value if value.tzinfo else value.replace(tzinfo=UTC)))
        case date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes():
            return base64.b64encode(value).decode()
        case _:
            # Exact decimals, paths, our own types: as they print themselves.
            return str(value)


def _print_plain(value: object, output: str) -> None:
    if output == "json":
        text = json.dumps(value, indent=2, ensure_ascii=False)
        click.echo(_UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text))
        return
    import yaml  # noqa: PLC0415 - slow to import, and rarely asked for

    click.echo(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), nl=False)


def _print_table(rows: Sequence[Mapping[str, object]], columns: Sequence[str], extra: Sequence[str]) -> None:
    from odf_common.runtime.layout import column, laid_out  # noqa: PLC0415 - only when there is a table to show

    if not columns:
        return
    width = _width()
    found = laid_out(
        [
            column(
                name,
                [_cell(row.get(name)) for row in rows],
                is_numeric=all(_is_number(row.get(name)) for row in rows),
                style=_coloured if name in COLOURED else str,
            )
            for name in columns
        ],
        width,
        extra,
    )
    for line in found.lines:
        click.echo(line)
    _remark_on(found, columns)


def _remark_on(found: "Layout", columns: Sequence[str]) -> None:
    """Say what a table does not show, or shows in parts."""
    said = []
    if found.parts == 0:
        said.append(f"{len(columns)} columns do not fit beside each other")
    if found.parts > 1:
        said.append(f"{len(columns)} columns are shown in {found.parts} parts, {columns[0]} in each")
    if found.left_out:
        said.append(f"no room for {', '.join(found.left_out)}")
    if found.is_cut:
        said.append("what has … is cut short")
    if said:
        remark(f"({'; '.join(said)}; --wide prints all)")


def _width() -> int | None:
    """Return how wide a table may be: None for any width, as in a pipe."""
    return None if is_wide() or not sys.stdout.isatty() else shutil.get_terminal_size().columns


def _keep_wide(context: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's protocol
    context.meta[_WIDE_KEY] = value


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _coloured(text: str) -> str:
    """Return a verdict or state in its colour, on a terminal that has colours."""
    return in_colour(text, COLOURS.get(text.partition(" ")[0], "yellow"))


def in_colour(text: str, colour: str) -> str:
    """Return a text in a colour, on a terminal that has colours."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty():
        return text
    return click.style(text, fg=colour)


def short(text: str, most: int = WIDE) -> str:
    """Return the first line of a text, of at most so many characters, with hashes cut."""
    text = _HASH.sub(r"\1…", text)
    first = text.partition("\n")[0]
    if first == text and len(text) <= most:
        return text
    return first[: most - 1].rstrip() + "…"


def _cell(value: object) -> str:
    held = plain(value)
    if held is None:
        return ""
    return held if isinstance(held, str) else json.dumps(held, ensure_ascii=False)
