"""Keys that are values, such as ids as keys of an object: inferred columns are bounded, and nothing is left out in silence."""

import json
from typing import Any

import pyarrow as pa
import pytest
from odf_testing.ingest_batches import a_message_batch, commit_messages

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepNdJson
from odf_ingest.read.types import columns as columns_module
from odf_ingest.read.types.columns import extend_columns


@pytest.fixture(autouse=True)
def _limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "MAX_INFERRED_COLUMNS", 6)


def record(*keys: str) -> bytes:
    return json.dumps({"id": 1, "by": dict.fromkeys(keys, 2)}).encode()


def test_records_with_more_columns_than_are_inferred_are_refused_with_the_way_out(
    make_bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns_module, "MAX_INFERRED_COLUMNS", 7)
    bench = make_bench(None, ReadStepNdJson())
    commit_messages(bench, a_message_batch({0: [record("a", "b"), record("c")]}))
    with pytest.raises(
        InvalidInput,
        match=r"have 8 columns and fields, and at most 7 .*declare those to keep.* as STRING to keep its text",
    ):
        commit_messages(bench, a_message_batch({0: [record("a"), record("d", "e")]}, start={0: 2}))
    assert len(bench.rows()) == 2, "nothing of the batch is committed"
    commit_messages(bench, a_message_batch({0: [record("a"), record("d")]}, start={0: 2}))
    assert [row["by"] for row in bench.rows()][-1]["d"] == 2


def test_an_object_with_endless_keys_is_kept_as_text_if_it_is_declared_so(make_bench: Any) -> None:
    columns = ["id BIGINT", "by STRING"]
    bench = make_bench(None, ReadStepNdJson(ddl_schema=tuple(columns)))
    for start, keys in enumerate(("abcdefgh", "ijklmnop")):
        commit_messages(bench, a_message_batch({0: [record(*keys)]}, start={0: start}))
    assert [json.loads(row["by"]) for row in bench.rows()] == [
        dict.fromkeys(keys, 2) for keys in ("abcdefgh", "ijklmnop")
    ]


def test_a_dataset_that_has_more_columns_continues_with_them() -> None:
    wide = pa.schema([(f"c{number}", pa.int64()) for number in range(9)])
    assert extend_columns(wide, wide) == wide
    assert extend_columns(wide, pa.schema([("c1", pa.int64())])) == wide
    with pytest.raises(InvalidInput, match="have 10 columns"):
        extend_columns(wide, pa.schema([("new", pa.int64())]))


@pytest.mark.parametrize(
    ("type_", "count"),
    [
        (pa.struct([(f"f{number}", pa.int64()) for number in range(6)]), 7),
        (pa.list_(pa.struct([(f"f{number}", pa.int64()) for number in range(5)])), 7),
    ],
)
def test_fields_at_any_depth_count(type_: pa.DataType, count: int) -> None:
    with pytest.raises(InvalidInput, match=f"have {count} columns"):
        extend_columns(None, pa.schema([("c", type_)]))
