"""Which rows of a batch have an invalid operation, and what is reported of them."""

import pyarrow as pa
import pytest

from odf_common.metadata.events import DatasetVocabulary
from odf_common.metadata.steps import (
    MergeStrategyAppend,
    MergeStrategyChangelogStream,
    MergeStrategyUpsertStream,
)
from odf_ingest.merge.strategies import operation_faults

KEY = ("id",)


@pytest.mark.parametrize(
    "strategy", [MergeStrategyChangelogStream(primary_key=KEY), MergeStrategyUpsertStream(primary_key=KEY)]
)
@pytest.mark.parametrize("type_", [pa.int8(), pa.uint8(), pa.int64()])
def test_rows_without_an_operation_are_named_by_their_place(strategy: object, type_: pa.DataType) -> None:
    table = pa.table({"op": pa.array([0, None, 3, 4, 1, 2, 100], type_)})
    found = operation_faults(strategy, table, DatasetVocabulary())  # type: ignore[arg-type]
    assert found.keys() == {1, 3, 6}
    assert found[1] == "has no operation in op"
    assert found[3].startswith("column op: 4 is not an operation")
    for other in (table.rename_columns(["other"]), pa.table({"op": ["+A"]})):
        assert operation_faults(strategy, other, DatasetVocabulary()) == {}  # type: ignore[arg-type]


def test_other_strategies_have_none() -> None:
    table = pa.table({"op": pa.array([9], pa.uint8())})
    assert operation_faults(MergeStrategyAppend(), table, DatasetVocabulary()) == {}
