"""The result of a replay is compared in the types of the dataset's schema, whatever the engine's setting."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
from odf_testing.builders import a_chain, a_seed

from odf_common.chain.state import ChainState
from odf_common.data.columns import with_system_columns
from odf_common.data.schema_evolution import schema_to_event
from odf_common.data.slices import write_slice
from odf_common.dataset import replay
from odf_common.dataset.replay import StoredTransform
from odf_common.metadata.engine_messages import TransformResponseSuccess
from odf_common.metadata.events import (
    DatasetKind,
    DatasetVocabulary,
    DataSlice,
    ExecuteTransform,
    OffsetInterval,
)
from odf_common.metadata.scalars import Timestamp
from odf_verifier.replay import _records_hash

INTERVAL = OffsetInterval(start=0, end=1)


def records(values: list[int | None], *, signed: bool) -> pa.Table:
    times = pa.array([0] * len(values)).cast(pa.timestamp("ms", "UTC"))
    return with_system_columns(
        pa.table({"event_time": times, "n": pa.array(values, pa.int64())}),
        ops=None,
        first_offset=0,
        system_time=Timestamp.from_ms(0),
        vocab=DatasetVocabulary(),
        signed=signed,
    )


def declared(table: pa.Table, folder: Path) -> tuple[ExecuteTransform, ChainState]:
    """Return the event of a slice and the state before it."""
    written = write_slice(table, folder / "declared")
    data = DataSlice(
        logical_hash=written.logical_hash,
        physical_hash=written.physical_hash,
        offset_interval=INTERVAL,
        size=written.size,
    )
    chain = a_chain(a_seed(kind=DatasetKind.Derivative), schema_to_event(table.schema))
    return ExecuteTransform(query_inputs=(), new_data=data), chain.state


def differences(event: ExecuteTransform, state: ChainState, given: pa.Table, folder: Path) -> list[str]:
    write_slice(given, folder / "data")
    response = TransformResponseSuccess(new_offset_interval=INTERVAL)
    stored = cast("StoredTransform", SimpleNamespace(event=event, state=state))
    records_hash = partial(_records_hash, state, folder / "data")
    return [text for text, _ in replay.differences(stored, response, records_hash, None)]


def test_an_engine_of_the_other_setting_gives_the_same_records(tmp_path: Path) -> None:
    event, state = declared(records([1, 2], signed=True), tmp_path)
    assert differences(event, state, records([1, 2], signed=False), tmp_path) == []


def test_other_values_are_a_difference(tmp_path: Path) -> None:
    event, state = declared(records([1, 2], signed=True), tmp_path)
    (text,) = differences(event, state, records([1, 3], signed=False), tmp_path)
    assert text.startswith("records: declared")


def test_a_null_where_the_dataset_requires_a_value_is_a_difference(tmp_path: Path) -> None:
    strict = records([1, 2], signed=False)
    strict = strict.cast(strict.schema.set(4, strict.schema.field("n").with_nullable(False)))
    event, state = declared(strict, tmp_path)
    (text,) = differences(event, state, records([1, None], signed=False), tmp_path)
    assert "column n: is required in this dataset" in text
