"""Finding the line that makes a whole text unreadable."""

from collections.abc import Callable

from odf_common.errors import InvalidInput


def first_bad_line(
    text: bytes, parse: Callable[[bytes], object], whole: InvalidInput, *, skipped: int = 0
) -> InvalidInput:
    """Return the error of the first line that `parse` refuses, named by its number from 1; else `whole`.

    `parse` takes some lines at once; blank lines are never given to it alone, nor the first `skipped` ones at all.
    """
    lines = text.split(b"\n")[skipped:]
    low, high = 0, len(lines)
    if _error(parse, lines) is None:
        return whole
    while high - low > 1:
        middle = (low + high) // 2
        if _error(parse, lines[low:middle]) is None:
            low = middle
        else:
            high = middle
    found = _error(parse, lines[low:high]) or whole
    return InvalidInput(where=f"line {low + skipped + 1}", text=str(found))


def _error(parse: Callable[[bytes], object], lines: list[bytes]) -> InvalidInput | None:
    text = b"\n".join(lines)
    if not text.strip():
        return None
    try:
        parse(text)
    except InvalidInput as error:
        return error
    return None
