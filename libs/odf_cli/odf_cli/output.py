"""Output: results on stdout as table, JSON or YAML; progress, remarks and prompts on stderr.

Only this module prints. It escapes control characters and invisible characters of any origin (`codec.visible_text`); in
JSON and YAML the escapes do not change the values.

Tables fit the terminal (`table_layout`), and have their full width in a pipe. Colours are only used on a terminal, and
never with NO_COLOR.
"""

import io
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from odf_common.codec.visible_text import visible, visible_json, visible_line
from odf_common.data.json_values import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, Task

    from odf_cli.table_layout import Layout

F = TypeVar("F", bound=Callable[..., Any])
FORMATS: Final = ("table", "json", "yaml")
MAX_CELL_CHARACTERS: Final = 60  # of a truncated string in a table
COLOURED: Final = ("verdict", "state")
COLOURS: Final = {
    **dict.fromkeys(
        ("valid", "ready", "reading", "updated", "rebuilt", "restored", "up-to-date", "committed"), "green"
    ),
    **dict.fromkeys(("invalid", "failed", "stopped", "stuck"), "red"),
}  # anything else is yellow
_WIDE_KEY: Final = "odf_common.wide"
SYSTEM_TIME: Final = "system_time"  # the column, unless the vocabulary renames it
_UTC_TIME: Final = re.compile(r"([+-]?\d{4,}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?Z")
_HASH: Final = re.compile(r"\b(f1620[0-9a-f]{8})[0-9a-f]{56}\b")  # enough to tell hashes apart


def output_option(command: F) -> F:
    """Add `--output table|json|yaml` (the parameter `output`) and `--wide` to a command."""
    form = click.option(
        "-o",
        "--output",
        type=click.Choice(FORMATS),
        default="table",
        show_default=True,
        help="Format of the result.",
    )
    wide = click.option(
        "-w",
        "--wide",
        is_flag=True,
        expose_value=False,
        callback=_keep_wide,
        help="Print tables in full width, without truncating or leaving out anything.",
    )
    return form(wide(command))


def is_wide() -> bool:
    """Return whether the current command has the option `--wide`."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_WIDE_KEY))


def print_rows(
    rows: Sequence[Mapping[str, object]],
    output: str,
    *,
    columns: Sequence[str] = (),
    extra: Sequence[str] = (),
    whole: Sequence[str] = (),
) -> None:
    """Print rows as an array of objects, or as a table with `columns` (default: those of the first row).

    If the terminal is too narrow, the columns in `extra` are omitted, with a remark. If a column in `whole` would be
    truncated, each row is printed with one line per field instead.
    """
    if output == "table":
        _print_table(rows, columns or tuple(rows[0] if rows else ()), extra, whole)
    else:
        _print_plain([plain(row) for row in rows], output)


def print_object(value: Mapping[str, object], output: str) -> None:
    """Print one object; in the table format with one line per field."""
    if output == "table":
        from odf_cli.table_layout import fields_of

        for line in fields_of({name: _cell(item) for name, item in value.items()}, _width()):
            click.echo(line)
    else:
        _print_plain(plain(value), output)


def confirm(question: str) -> None:
    """Ask the user a question; raises `Declined` for no, and `UsageError` if there is no terminal to ask on."""
    try:
        is_agreed = click.confirm(visible(question), err=True)
    except click.Abort as error:
        if not isinstance(error.__context__, EOFError):
            raise  # Ctrl-C
        click.echo(err=True)
        raise click.UsageError("cannot ask for confirmation; give --yes") from error
    if not is_agreed:
        raise Declined("nothing was changed")


class Declined(click.ClickException):
    """The user declined a confirmation: nothing was done, and the exit code is 1."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Say that nothing was changed."""
        click.echo(self.format_message(), file=file, err=file is None)


def print_misuse(error: click.ClickException) -> None:
    """Print an error in the command line as click words it."""
    text = io.StringIO()
    error.show(text)
    echo(text.getvalue(), err=True, is_line=False)


def shorten_rows(rows: Sequence[Mapping[str, object]], column: str) -> list[dict[str, object]]:
    """Return rows for a table; on a terminal, the strings of `column` are truncated and their hashes shortened."""
    if _width() is None:
        return [{**row} for row in rows]
    return [
        {**row, column: short(cell)} if isinstance(cell := row.get(column), str) else {**row} for row in rows
    ]


def print_text(text: str) -> None:
    """Print a paragraph wrapped to the width of the terminal, with the indentation of its first line."""
    from odf_cli.table_layout import paragraph

    for line in paragraph(text, _width()):
        click.echo(line)


def prefix_dataset(name: str, error: str) -> str:
    """Return an error message that begins with the dataset's name; unchanged if the message already does."""
    is_named = error.startswith((f"{name} ", f"{name}:", f"the data of {name} "))
    return error if is_named else f"{name}: {error}"


def echo(text: str, *, err: bool = False, is_line: bool = True) -> None:
    """Print text with control characters escaped; with `is_line`, followed by a newline."""
    click.echo(visible(text), err=err, nl=is_line)


def heading(text: str, colour: str, rest: str) -> None:
    """Print an empty line, then a line with `text` in a colour and `rest`."""
    click.echo(f"\n{in_colour(visible(text), colour)}{visible(rest)}")


def remark(text: str) -> None:
    """Print on stderr something that does not belong to the result."""
    echo(text, err=True)


def print_bytes(content: bytes) -> None:
    """Print bytes unchanged, followed by a newline; on a terminal, as escaped text."""
    if sys.stdout.isatty():
        echo(content.decode(errors="backslashreplace"))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(content + b"\n")
    sys.stdout.buffer.flush()


@contextmanager
def progress(console: "Console | None" = None) -> Iterator["Progress"]:
    """Show progress bars on stderr during the `with` block, if stderr is a terminal."""
    if console is None and not sys.stderr.isatty():
        yield cast("Progress", _NoBars())  # importing rich takes longer than most commands
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    console = console or Console(stderr=True)
    with Progress(
        _description(),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bars:
        yield bars


class _NoBars:
    """Replaces the progress bars if stderr is not a terminal; does nothing."""

    def add_task(self, description: str, **_: object) -> int:
        return 0

    def update(self, task: int, **_: object) -> None:
        pass

    def remove_task(self, task: int) -> None:
        pass


def _description() -> "ProgressColumn":
    """Return the column of a progress bar with its description."""
    from rich.progress import ProgressColumn
    from rich.table import Column
    from rich.text import Text

    class Description(ProgressColumn):
        def render(self, task: "Task") -> Text:
            return Text(visible_line(task.description))

    return Description(table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1))


def _print_plain(value: object, output: str) -> None:
    if output == "json":
        click.echo(visible_json(json.dumps(value, indent=2, ensure_ascii=False)))
        return
    from odf_common.codec.yaml_syntax import write

    click.echo(write(value), nl=False)


def _print_table(
    rows: Sequence[Mapping[str, object]], columns: Sequence[str], extra: Sequence[str], whole: Sequence[str]
) -> None:
    from odf_cli.table_layout import column, laid_out

    if not columns:
        return
    width = _width()
    layout = laid_out(
        [
            column(
                name,
                _with_equal_fractions([_cell(row.get(name)) for row in rows], is_system=name == SYSTEM_TIME),
                is_numeric=all(_is_number(row.get(name)) for row in rows),
                style=_colour if name in COLOURED else str,
            )
            for name in columns
        ],
        width,
        extra,
        whole,
    )
    for line in layout.lines:
        click.echo(line)
    _remark_on(layout, columns)


def _remark_on(layout: "Layout", columns: Sequence[str]) -> None:
    """Print a remark on the columns of a table that were omitted, truncated or split."""
    notes = []
    if layout.parts == 0:
        notes.append(f"{len(columns)} columns do not fit side by side")
    if layout.parts > 1:
        notes.append(f"{len(columns)} columns are split into {layout.parts} tables, each with {columns[0]}")
    if layout.left_out:
        notes.append(f"left out: {', '.join(layout.left_out)}")
    if layout.is_cut:
        notes.append("… marks truncated text")
    if notes:
        remark(f"({'; '.join(notes)}; --wide shows all)")


def _width() -> int | None:
    """Return the maximum width of a table; None if unlimited, as in a pipe."""
    if is_wide() or not sys.stdout.isatty():
        return None
    import shutil  # it imports modules for compression

    return shutil.get_terminal_size().columns


def _keep_wide(context: click.Context, _: click.Parameter, value: bool) -> None:
    context.meta[_WIDE_KEY] = value


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _colour(text: str) -> str:
    """Return a verdict or state in its colour, if the terminal supports colours."""
    return in_colour(text, COLOURS.get(text.partition(" ")[0], "yellow"))


def in_colour(text: str, colour: str) -> str:
    """Return a string in a colour, if the terminal supports colours."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty():
        return text
    return click.style(text, fg=colour)


def short(text: str, most: int = MAX_CELL_CHARACTERS) -> str:
    """Return the first line of a string with hashes shortened, truncated to `most` characters."""
    from odf_cli.table_layout import ELLIPSIS, at_word

    text = _HASH.sub(r"\1…", text)
    first = text.partition("\n")[0]
    if first == text and len(text) <= most:
        return text
    return (first if len(first) < most else at_word(first, first[: most - 1])) + ELLIPSIS


def _with_equal_fractions(cells: list[str], *, is_system: bool) -> list[str]:
    """Return the cells; if all are UTC timestamps, with the same number of fractional digits.

    System times have at least milliseconds, even on a whole second.
    """
    parts = [(cell, _UTC_TIME.fullmatch(cell)) for cell in cells]
    if not all(match for cell, match in parts if cell):
        return cells
    most = max((len(match[2] or "") for _, match in parts if match), default=0)
    most = max(most, len(".000")) if is_system else most
    return [
        f"{match[1]}{(match[2] or '.').ljust(most, '0')}Z" if match and most else cell
        for cell, match in parts
    ]


def _cell(value: object) -> str:
    plain_value = plain(value)
    if plain_value is None:
        return ""
    return plain_value if isinstance(plain_value, str) else _nested_json(value)


def _nested_json(value: object) -> str:
    """Return a value as JSON, except that numbers such as NaN are written without quotes."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case Mapping():
            pairs = (
                f"{json.dumps(str(key), ensure_ascii=False)}: {_nested_json(item)}"
                for key, item in value.items()
            )
            return "{" + ", ".join(pairs) + "}"
        case list() | tuple() | set() | frozenset():
            return "[" + ", ".join(map(_nested_json, value)) + "]"
        case _:
            return json.dumps(plain(value), ensure_ascii=False)
