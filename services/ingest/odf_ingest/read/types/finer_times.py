"""Times that are finer than their column: cut towards the past, or refused where the source says so."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from odf_common.data.stored_types import in_unit
from odf_common.errors import InvalidInput
from odf_ingest.read.types.type_names import shown

# Not a parameter of every reader: they are chosen by read steps, in which the specification has no such option.
_REFUSES_FINER: Final = ContextVar("_REFUSES_FINER", default=False)


@contextmanager
def finer_times_refused(*, is_on: bool) -> Iterator[None]:
    """Within this context, raise `InvalidInput` for a time that would be cut, if `is_on`."""
    before = _REFUSES_FINER.set(is_on)
    try:
        yield
    finally:
        _REFUSES_FINER.reset(before)


def cut(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Return timestamps or times of day in the unit of `target`, finer ones cut towards the past.

    Raises `pa.ArrowInvalid` if a time is outside of what the unit can count.
    """
    result = in_unit(values, target)
    if _REFUSES_FINER.get():
        require_not_finer(values.cast(target, safe=False).cast(values.type), values, values)
    return result


def require_not_finer(restored: pa.Array, values: pa.Array, written: pa.Array) -> None:
    """Raise `InvalidInput`, where finer times are refused, for the first of `values` that was cut to another one."""
    if _REFUSES_FINER.get():
        finer = written.filter(pc.not_equal(restored, values))
        if len(finer):
            raise _finer(finer[0].cast(pa.string()).as_py())


def _finer(text: str) -> InvalidInput:
    what = f"{shown(text)} has a finer fraction than its column, and the source has finerTimes=refuse"
    return InvalidInput(text=f"{what}; declare more digits, or STRING")


def without_finer_digits(texts: pa.Array, digits: int) -> pa.Array:
    """Return texts of times with up to `digits` digits after the point."""
    if _REFUSES_FINER.get():
        finer = texts.filter(pc.match_substring_regex(texts, rf"\.\d{{{digits}}}\d*[1-9]"))
        if len(finer):
            raise _finer(finer[0].as_py())
    return pc.replace_substring_regex(texts, rf"(\.\d{{{digits}}})\d+", r"\1")
