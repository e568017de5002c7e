"""Which part of a newly written slice is kept for the next batch; the rest is read from its file."""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from odf_testing.builders import a_chain, a_hash

from odf_common.data.slices import write_slice
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.steps import MergeStrategy, MergeStrategyLedger, MergeStrategySnapshot
from odf_ingest.history.dataset_history import DatasetHistory
from odf_ingest.history.indexes import Slice, SliceRecords

RECORDS = pa.table({"id": [1, 2], "v": ["a", "b"]})
NAME, OTHER = a_hash("slice"), a_hash("other slice")


class Files:
    """The slice's file; counts how often it is read."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "slice"
        self.read: list[Multihash] = []
        write_slice(RECORDS, self.path)

    def __call__(self, name: Multihash) -> Path:
        self.read.append(name)
        return self.path


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def with_indexes(files: Files, *merges: MergeStrategy) -> DatasetHistory:
    chain = a_chain()
    history = DatasetHistory(chain.read, files)
    for merge in merges:
        history.catch_up(merge, lambda: chain.state)
    return history


def columns_read(
    history: DatasetHistory, *names: Multihash, columns: tuple[str, ...] | None
) -> Mapping[str, list[object]]:
    slices = [Slice(block=f"block {name}", name=name) for name in names]
    ((_, _, found),) = history.read(slices, columns)
    columns_found: Mapping[str, list[object]] = found.records.to_pydict()
    return columns_found


LEDGER, SNAPSHOT = MergeStrategyLedger(primary_key=("id",)), MergeStrategySnapshot(primary_key=("id",))


@pytest.mark.parametrize(
    ("merges", "columns", "is_kept"),
    [
        ((LEDGER,), ("id",), True),
        ((LEDGER,), ("v",), False),
        ((LEDGER,), None, False),
        ((SNAPSHOT,), None, True),
        ((LEDGER, SNAPSHOT), None, True),
        ((LEDGER, SNAPSHOT), ("id",), True),
        ((), ("id",), False),
        ((), None, False),
    ],
    ids=["key", "no-key", "all-of-key", "all", "all-of-both", "key-of-both", "none", "all-of-none"],
)
def test_what_the_indexes_need_of_a_written_slice_is_kept_and_no_more(
    files: Files, merges: tuple[MergeStrategy, ...], columns: tuple[str, ...] | None, *, is_kept: bool
) -> None:
    history = with_indexes(files, *merges)
    history.cache_slice(NAME, SliceRecords(records=RECORDS))
    found = columns_read(history, NAME, columns=columns)
    assert {name: found[name] for name in columns or RECORDS.column_names} == {
        name: RECORDS[name].to_pylist() for name in columns or RECORDS.column_names
    }
    assert files.read == ([] if is_kept else [NAME])


@pytest.mark.parametrize("names", [(OTHER,), (NAME, OTHER)], ids=["another", "more"])
def test_a_written_slice_is_not_used_for_another(files: Files, names: tuple[Multihash, ...]) -> None:
    history = with_indexes(files, SNAPSHOT)
    history.cache_slice(NAME, SliceRecords(records=RECORDS.slice(1)))
    assert columns_read(history, *names, columns=("id",)) == {"id": [1, 2] * len(names)}
    assert files.read == list(names)
