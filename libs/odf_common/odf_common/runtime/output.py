"""Printing: results on stdout as table, JSON or YAML; progress and remarks on stderr."""

import base64
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from odf_common.metadata.scalars import Timestamp

if TYPE_CHECKING:
    from rich.progress import Progress

F = TypeVar("F", bound=Callable[..., Any])
FORMATS: Final = ("table", "json", "yaml")
WIDE: Final = 60  # characters of a text in a table
_HASH: Final = re.compile(r"\b(f1620[0-9a-f]{8})[0-9a-f]{56}\b")  # enough of one to be told from others


def output_option(command: F) -> F:
    """Add `--output table|json|yaml` to a command; it arrives as the parameter `output`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(FORMATS),
        default="table",
        show_default=True,
        help="Form of the result.",
    )(command)


def print_rows(rows: Sequence[Mapping[str, object]], output: str, *, columns: Sequence[str] = ()) -> None:
    """Print rows: one array of objects, or a table with these columns (all of the first row by default)."""
    if output == "table":
        _print_table(rows, columns or tuple(rows[0] if rows else ()))
    else:
        _print_plain([plain(row) for row in rows], output)


def print_object(value: Mapping[str, object], output: str) -> None:
    """Print one object; as a table, a line for each field."""
    if output == "table":
        _print_table([{"field": name, "value": held} for name, held in value.items()], ("field", "value"))
    else:
        _print_plain(plain(value), output)


def shortened(rows: Sequence[Mapping[str, object]], column: str) -> list[Mapping[str, object]]:
    """Return rows for a table: the texts of one column end after `WIDE` characters, and hashes earlier."""
    return [{**row, column: _short(row.get(column))} for row in rows]


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

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
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
        click.echo(json.dumps(value, indent=2, ensure_ascii=False))
        return
    import yaml  # noqa: PLC0415 - slow to import, and rarely asked for

    click.echo(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), nl=False)


def _print_table(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> None:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - only when there is a table to show
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    numeric = {name for name in columns if all(isinstance(row.get(name), int | float | None) for row in rows)}
    for name in columns:
        table.add_column(Text(name), justify="right" if name in numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(row.get(name))) for name in columns))
    # A pipe has no width of its own: print as wide as it takes.
    console = Console(file=sys.stdout) if sys.stdout.isatty() else Console(file=sys.stdout, width=10_000)
    console.print(table)


def _short(value: object) -> object:
    if not isinstance(value, str):
        return value
    value = _HASH.sub(r"\1…", value)
    first = value.partition("\n")[0]
    if first == value and len(value) <= WIDE:
        return value
    return first[: WIDE - 1].rstrip() + "…"


def _cell(value: object) -> str:
    held = plain(value)
    if held is None:
        return ""
    return held if isinstance(held, str) else json.dumps(held, ensure_ascii=False)
