"""Tables fit the terminal, and anything cut is marked."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from rich.cells import cell_len

from odf_cli.table_layout import Layout, column, cut, fields_of, laid_out

Cells = Mapping[str, Sequence[Any]]
HASH = f"f1620{'0123456789abcdef' * 4}"
TIMES = ["2013-01-01T05:00:00Z", "2013-01-01T05:00:00.123Z"]


def table(cells: Cells, width: int | None, *extra: str) -> Layout:
    columns = [
        column(name, [str(one) for one in held], is_numeric=isinstance(held[0], int))
        for name, held in cells.items()
    ]
    found = laid_out(columns, width, extra)
    assert width is None or all(cell_len(line) <= width for line in found.lines)
    return found


def test_a_table_that_fits_is_printed_unchanged() -> None:
    found = table({"alias": ["a.b", "c"], "records": [1, 1000]}, 80)
    assert found == Layout(lines=("alias  records", "─────  ───────", "a.b          1", "c         1000"))


def test_names_are_cut_and_times_and_numbers_are_not() -> None:
    cells: Cells = {
        "block": [7, 123456],
        "systemTime": TIMES,
        "event": ["AddData", "Seed"],
        "hash": [HASH, HASH],
    }
    found = table(cells, 80)
    assert found.is_cut
    assert "123456  2013-01-01T05:00:00.123Z  Seed" in found.lines[-1]
    assert "…" in found.lines[-1]
    assert found.lines[-1].endswith(HASH[-8:])
    assert table(cells, None).lines[-1].endswith(HASH)


def test_columns_that_may_go_are_left_out_before_names_become_illegible() -> None:
    cells: Cells = {"alias": ["n" * 40], "watermark": TIMES[:1], "blocks": [17], "updated": TIMES[1:]}
    found = table(cells, 50, "blocks", "updated")
    assert found.left_out == ("updated",)
    assert table(cells, 44, "blocks", "updated").left_out == ("blocks", "updated")


def test_many_columns_are_printed_in_parts_with_the_first_in_each() -> None:
    cells = {f"a_rather_long_name_{n}": [n, n] for n in range(23)}
    found = table({"offset": [1, 2], "event_time": TIMES, **cells}, 80)
    text = "\n".join(found.lines)
    assert found.parts > 1
    assert text.count("offset") == found.parts
    assert all(name in text for name in cells)
    assert all(time in text for time in TIMES)
    assert not found.is_cut


def test_one_long_value_does_not_take_the_space_of_others() -> None:
    found = table({"offset": [1], "text": ["x" * 5000], "city": ["Oslo"]}, 40)
    assert "Oslo" in found.lines[-1]
    assert found.is_cut


def test_headers_wider_than_the_terminal_are_cut_too() -> None:
    found = table({"k": [1, 2], "h" * 200: [1, 2], "t": ["x", "y"]}, 40)
    assert "hhh…hhh" in "".join(found.lines)


def test_wide_characters_keep_columns_straight() -> None:
    found = table({"city": ["東京都千代田区霞が関", "Oslo"], "n": [1, 2]}, 18)
    assert {cell_len(line) for line in found.lines[2:]} == {18}


@pytest.mark.parametrize("text", ["a\nb", "a\x1b[31mb", "a\rb", "a\x00b"])
def test_control_characters_have_no_effect_on_the_terminal(text: str) -> None:
    shown = "".join(table({"t": [text]}, 80).lines)
    assert shown.isprintable()


def test_fields_break_between_words_and_hashes_stay_whole() -> None:
    pairs = {
        "head": HASH,
        "a_name_that_is_long": HASH,
        "problem": "it has read block " + "what it said " * 12,
    }
    lines = fields_of(pairs, 80)
    assert all(len(line) <= 80 for line in lines)
    assert sum(HASH in line for line in lines) == 2
    assert " ".join(line.strip() for line in lines).split().count("what") == 12
    assert fields_of({"a": "x y\nz"}, None) == ("a  x y", "   z")


def test_names_and_hashes_lose_their_middle_and_words_their_end() -> None:
    assert cut("com.example.flights.by-airport", 20) == "com.example.f…irport"
    assert cut(HASH, 25) == f"{HASH[:16]}…{HASH[-8:]}"
    assert cell_len(cut("東京都千代田区霞が関", 15)) <= 15


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (12, "all went…"),
        (14, "all went well…"),
        (15, "all went well…"),
        (18, "all went well, as…"),
        (19, "all went well, as…"),
        (27, "all went well, as it…"),
        (9, "all went…"),
        (6, "all w…"),
    ],
)
def test_sentences_lose_whole_words_if_enough_is_left(width: int, shown: str) -> None:
    text = "all went well, as it should"
    assert cut(text + "!", width) == shown
    assert cut('{"event_time":"2020-01-01T00:00:00Z" }', 20) == '{"event_time":"2020…'
    assert cut("東京都 千代田区霞が関", 8) == "東京都…"
    assert cut("a b東京都千代田区霞が関", 9) == "a b東京…"


def test_columns_with_long_headers_are_printed_one_line_per_field_if_that_is_shorter() -> None:
    cells = {f"a_header_that_is_far_longer_than_any_of_its_values_{n}": [n, n] for n in range(22)}
    found = table({"offset": [1, 2], **cells}, 80)
    assert (found.parts, len(found.lines)) == (0, 2 * 23 + 1)
