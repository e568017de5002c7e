"""A refused draft leaves no files."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from odf_common.errors import InvalidInput
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.store import ObjectKind
from odf_ingest.commit.position import SourcePosition
from odf_ingest.commit.slice_writer import Drafter
from odf_ingest.merge.interface import MergeResult
from odf_ingest.prepare.preparer import PreparedRecords
from odf_ingest.source_settings import SourceSettings


def test_a_draft_whose_watermark_is_refused_leaves_no_slice(make_bench: Callable[..., Any]) -> None:
    bench = make_bench()
    drafter = Drafter(bench.blobs, bench.clock, block_version=3, is_signed=False)
    times = pa.array([1_600_000_000_000], pa.timestamp("ms", "UTC"))
    merged = MergeResult(records=pa.table({"event_time": times, "id": pa.array([1], pa.int64())}))
    with pytest.raises(InvalidInput, match="outside the years 1 to 9999"):
        drafter.draft(bench.state, merged, source="default", position=SourcePosition(), watermark=-(10**18))
    assert list(bench.blobs.names(bench.dataset, ObjectKind.DATA)) == []
    draft = drafter.draft(
        bench.state, merged, source="default", position=SourcePosition(), watermark=1_600_000_000_000
    )
    assert draft.slice is not None
    assert list(bench.blobs.names(bench.dataset, ObjectKind.DATA)) == [draft.slice[0]]


@pytest.mark.parametrize("column", ["offset", "system_time"])
def test_records_have_no_system_columns(make_bench: Callable[..., Any], column: str) -> None:
    bench = make_bench()
    state = bench.state
    drafter = Drafter(bench.blobs, bench.clock, block_version=3, is_signed=False)
    records = pa.table({"id": pa.array([1], pa.int64()), column: pa.array([1], pa.int64())})
    prepared = PreparedRecords(
        source=state.push_sources["default"], records=records, default_event_time=Timestamp(0), greatest={}
    )
    with pytest.raises(InvalidInput, match=f"column {column}: the name belongs to a system column"):
        drafter.merge_records(
            state, prepared, bench.queues.queue(bench.dataset).history.at(state), SourceSettings()
        )
