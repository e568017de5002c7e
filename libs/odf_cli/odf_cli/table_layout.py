"""Lays out tables to fit a terminal: long text is truncated with "…", columns are omitted or split. No IO.

Text is truncated before columns are omitted. Numbers and times are never truncated. The layout reports what it omits.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from odf_common.codec.visible_text import visible_line

GAP: Final = "  "
LEGIBLE_CHARACTERS: Final = 20  # that keep truncated text legible
MIN_CHARACTERS: Final = 12  # text is never truncated below these
MAX_SPLIT_CELL_CHARACTERS: Final = 40  # of text when the columns are split into parts
ELLIPSIS: Final = "…"
INDENT: Final = "  "
_TIME: Final = re.compile(r"-?\d{4,}-\d\d-\d\d(T[\d:.]+Z?)?|\d\d:\d\d(:[\d.]+)?")

Style = Callable[[str], str]  # adds something of no width, such as a colour


def cell_len(text: str) -> int:
    """Return the width of a string on a terminal. For non-ASCII strings it imports rich, which is slow."""
    if text.isascii() and text.isprintable():
        return len(text)
    from rich import cells

    return cells.cell_len(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: its header, its cells, and its printed width."""

    name: str
    cells: tuple[str, ...]
    is_numeric: bool
    width: int = 0
    style: Style = str

    @property
    def floor(self) -> int:
        """Return the minimum width to which the column may be truncated."""
        is_whole = self.is_numeric or all(_TIME.fullmatch(cell) for cell in self.cells if cell)
        return self.width if is_whole else min(self.width, max(MIN_CHARACTERS, cell_len(self.name)))

    def lines(self) -> Iterator[str]:
        """Yield the header and the cells, each padded or truncated to the column's width."""
        yield self._fit(self.name)
        for cell in self.cells:
            fitted = self._fit(cell)
            yield fitted.replace(cell, self.style(cell), 1) if cell and cell in fitted else fitted

    def _fit(self, text: str) -> str:
        if cell_len(text) > self.width:
            text = cut(text, self.width)
        room = " " * (self.width - cell_len(text))
        return room + text if self.is_numeric else text + room


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The lines of a table, and a report of what they omit."""

    lines: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    """The names of the omitted columns."""
    is_cut: bool = False
    """Whether any cell is truncated."""
    parts: int = 1
    """The number of tables that the columns are split into; 0 if each row has one line per field."""


def column(name: str, cells: Sequence[str], *, is_numeric: bool, style: Style = str) -> Column:
    """Return a column as wide as its widest cell; control and invisible characters are escaped."""
    name, cells = visible_line(name), tuple(visible_line(cell) for cell in cells)
    width = max(map(cell_len, (name, *cells)))
    return Column(name=name, cells=cells, is_numeric=is_numeric, width=width, style=style)


def laid_out(
    columns: Sequence[Column], width: int | None, extra: Sequence[str] = (), whole: Sequence[str] = ()
) -> Layout:
    """Return the layout of a table of at most `width` characters; None means unlimited.

    First text is truncated to `LEGIBLE_CHARACTERS`, then columns in `extra` are omitted, then text is truncated to
    `MIN_CHARACTERS`. If that is not enough, the columns are split into several tables, each with the first column, or
    each row is printed with one line per field, whichever takes fewer lines. The latter also happens if a column in
    `whole` would be truncated.
    """
    if width is None or _width(columns) <= width:
        return Layout(lines=tuple(_table(columns)))
    for floor in (LEGIBLE_CHARACTERS, MIN_CHARACTERS):
        shown = _without(columns, width, extra, floor)
        fitted = _shrunk(shown, width, floor)
        if fitted is not None:
            left_out = tuple(column.name for column in columns if column not in shown)
            truncated = {a.name for a, b in zip(fitted, shown, strict=True) if a.width < b.width}
            if not truncated.isdisjoint(whole):
                return _one_by_one(columns, width)
            return Layout(lines=tuple(_table(fitted)), left_out=left_out, is_cut=bool(truncated))
    parts, records = _in_parts(columns, width), _one_by_one(columns, width)
    return records if len(records.lines) < len(parts.lines) else parts


def _one_by_one(columns: Sequence[Column], width: int) -> Layout:
    """Return each row as a block with one line per field."""
    blocks = [
        (*fields_of(dict(zip((column.name for column in columns), row, strict=True)), width), "")
        for row in zip(*(column.cells for column in columns), strict=True)
    ]
    return Layout(lines=tuple(line for block in blocks for line in block)[:-1], parts=0)


def fields_of(pairs: Mapping[str, str], width: int | None) -> tuple[str, ...]:
    """Return one line per field; long values are wrapped between words.

    A word that is longer than a line is not broken, so that it can be copied.
    """
    names = max((cell_len(visible_line(name)) for name in pairs), default=0)
    if width is not None:
        names = min(names, width // 2)
    lines: list[str] = []
    for name, value in pairs.items():
        shown = visible_line(name)
        shown = shown if cell_len(shown) <= names else cut(shown, names)
        label = shown + " " * (names - cell_len(shown)) + GAP
        words = [visible_line(line) for line in value.split("\n")]
        room = None if width is None else width - cell_len(label)
        longest = max((cell_len(word) for line in words for word in line.split()), default=0)
        if room is not None and longest > room and width is not None:
            lines.append(label.rstrip())
            lines += (INDENT + line for line in _wrap(words, width - len(INDENT)))
        else:
            first, *rest = _wrap(words, room)
            lines.append((label + first).rstrip())
            lines += ((" " * cell_len(label) + line).rstrip() for line in rest)
    return tuple(lines)


def paragraph(text: str, width: int | None) -> tuple[str, ...]:
    """Return the text wrapped to lines of at most `width` characters, each with the indentation of the first."""
    indent = " " * (len(text) - len(text.lstrip(" ")))
    room = None if width is None else width - len(indent)
    lines = [visible_line(line) for line in text[len(indent) :].split("\n")]
    return tuple(indent + line for line in _wrap(lines, room))


def cut(text: str, width: int) -> str:
    """Return a string truncated to `width` characters: a sentence loses its last words, a name or hash its middle.

    Names often differ only at their end, and blocks can be found by the end of their hash.
    """
    from rich.cells import set_cell_size

    if " " in text:
        return at_word(text, set_cell_size(text, width - 1)) + ELLIPSIS
    end = (width - 1) // 3
    last = text[len(text) - end :]
    while cell_len(last) > end:
        last = last[1:]
    return set_cell_size(text, width - 1 - cell_len(last)).rstrip() + ELLIPSIS + last


def at_word(text: str, beginning: str) -> str:
    """Return `beginning`, the beginning of `text`, without a broken last word.

    A long last word is kept broken, if less than two thirds would be left otherwise.
    """
    if not text.startswith(beginning):
        beginning = beginning[:-1]  # a wide character did not fit, and left a space
    whole = beginning if text[len(beginning) :].startswith(" ") else beginning.rpartition(" ")[0]
    whole = whole.rstrip(" ,;")
    return whole if 3 * len(whole) >= 2 * len(beginning) else beginning.rstrip()


def _width(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + len(GAP) * max(len(columns) - 1, 0)


def _table(columns: Sequence[Column]) -> Iterator[str]:
    rows = zip(*(column.lines() for column in columns), strict=True)
    for number, row in enumerate(rows):
        yield GAP.join(row).rstrip()
        if number == 0:
            yield GAP.join("─" * column.width for column in columns)


def _without(columns: Sequence[Column], width: int, extra: Sequence[str], floor: int) -> tuple[Column, ...]:
    """Return the columns after omitting those in `extra`, in their order, until the rest fits."""
    shown = list(columns)
    left_out: list[Column] = []
    for name in extra:
        if _shrunk(shown, width, floor) is not None:
            break
        left_out += (column for column in shown if column.name == name)
        shown = [column for column in shown if column.name != name]
    for column in reversed(left_out):
        more = [other for other in columns if other in shown or other is column]
        if _shrunk(more, width, floor) is not None:
            shown = more
    return tuple(shown)


def _shrunk(columns: Sequence[Column], width: int, floor: int) -> tuple[Column, ...] | None:
    """Return the columns narrowed to fit, widest first; None if a column would get narrower than its minimum."""
    floors = [min(column.width, max(column.floor, floor)) for column in columns]
    widths = [column.width for column in columns]
    surplus = _width(columns) - width
    while surplus > 0:
        able = [n for n, size in enumerate(widths) if size > floors[n]]
        if not able:
            return None
        widths[max(able, key=lambda n: widths[n])] -= 1
        surplus -= 1
    return tuple(replace(column, width=size) for column, size in zip(columns, widths, strict=True))


def _in_parts(columns: Sequence[Column], width: int) -> Layout:
    """Return the columns split into several tables; each contains the first column, which identifies rows."""
    first = replace(columns[0], width=min(columns[0].width, width // 2))
    room = width - first.width - len(GAP)
    rest = [
        replace(column, width=min(column.width, max(MAX_SPLIT_CELL_CHARACTERS, column.floor), room))
        for column in columns[1:]
    ]
    parts: list[list[Column]] = [[first]]
    for column in rest:
        if _width([*parts[-1], column]) > width and parts[-1] != [first]:
            parts.append([first])
        parts[-1].append(column)
    lines = [line for part in parts for line in (*_table(part), "")]
    is_cut = any(a.width < b.width for a, b in zip((first, *rest), columns, strict=True))
    return Layout(lines=tuple(lines[:-1]), is_cut=is_cut, parts=len(parts))


def _wrap(lines: Sequence[str], room: int | None) -> tuple[str, ...]:
    """Return the lines, wrapped between words to `room` characters."""
    if room is None:
        return tuple(lines) or ("",)
    wrapped: list[str] = []
    for line in lines:
        rest = ""
        for word in line.split(" "):
            if rest and cell_len(rest) + 1 + cell_len(word) > room:
                wrapped.append(rest)
                rest = word
            else:
                rest = f"{rest} {word}" if rest else word
        wrapped.append(rest)
    return tuple(wrapped) or ("",)
