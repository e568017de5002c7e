"""Which columns of a dataset a source has to keep, whatever their place."""

import pyarrow as pa
import pytest

from odf_common.errors import InvalidInput
from odf_coordinator.definitions.diff import _require_kept

ID, CITY = pa.field("id", pa.int64(), nullable=False), pa.field("city", pa.string())
KNOWN = pa.schema([ID, CITY])


@pytest.mark.parametrize(
    ("before", "declared", "column"),
    [
        ([ID, CITY], [CITY], "id"),
        ([ID, CITY], [ID], "city"),
        ([ID, CITY], [], "id"),
        ([CITY, ID], [ID], "city"),
        ([CITY], [], "city"),
    ],
)
def test_a_column_that_the_source_had_stays(
    before: list[pa.Field], declared: list[pa.Field], column: str
) -> None:
    with pytest.raises(InvalidInput, match=f"column {column}: cannot be removed"):
        _require_kept(KNOWN, pa.schema(before), pa.schema(declared))


@pytest.mark.parametrize(
    ("before", "declared"),
    [
        ([ID, CITY], [CITY, ID]),
        ([], []),
        ([ID], [ID]),
        ([CITY], [CITY, ID]),
        ([ID], [ID.with_nullable(True)]),
    ],
)
def test_what_the_source_had_or_never_had_is_as_it_was(
    before: list[pa.Field], declared: list[pa.Field]
) -> None:
    _require_kept(KNOWN, pa.schema(before), pa.schema(declared))


def test_only_what_was_optional_everywhere_may_not_become_required() -> None:
    required = CITY.with_nullable(False)
    with pytest.raises(InvalidInput, match="column city: was optional"):
        _require_kept(KNOWN, pa.schema([CITY]), pa.schema([required]))
    _require_kept(KNOWN, pa.schema([required]), pa.schema([required]))
    _require_kept(pa.schema([required]), pa.schema([CITY]), pa.schema([required]))
