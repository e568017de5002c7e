"""Datasets continue with their schema: those of other implementations, of the other setting, of several sources."""

from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from odf_testing.ingest_batches import commit_file

from odf_common.chain.walk import fold
from odf_common.data.schema_evolution import schema_of_event
from odf_common.data.slices import hash_slice, slice_schema
from odf_common.data.stored_types import stored_schema
from odf_common.errors import InvalidInput
from odf_common.hashing.physical import physical_hash
from odf_common.metadata.events import AddData, AddPushSource, DisablePollingSource, SetDataSchema
from odf_common.metadata.scalars import Timestamp
from odf_common.metadata.steps import (
    MergeStrategy,
    MergeStrategyAppend,
    MergeStrategySnapshot,
    ReadStepCsv,
    ReadStepNdJson,
)
from odf_common.ports.store import ObjectKind
from odf_ingest.commit.committer import Outcome
from odf_ingest.prepare.plan import plan_of

APPEND = MergeStrategyAppend()
EVENT_TIME = Timestamp.parse("2026-12-01T00:00:00Z")
CITIES = (
    "city,population,area,founded,capital\n"
    "Berlin,4000000,891.7,1237-10-28,true\n"
    "Porto,231000,,0868-01-01,false\n"
)


def push(bench: Any, tmp_path: Path, text: str, *, key: str = "key", source: str = "default") -> Outcome:
    return commit_file(bench, tmp_path / "batch", text, key, source=source)


def a_source(name: str, *columns: str, merge: MergeStrategy = APPEND) -> AddPushSource:
    return AddPushSource(source_name=name, read=ReadStepNdJson(ddl_schema=columns), merge=merge)


def slice_files(bench: Any) -> list[tuple[AddData, Path]]:
    return [
        (event, bench.blobs.local_path(bench.dataset, ObjectKind.DATA, event.new_data.physical_hash))
        for event in bench.events()
        if isinstance(event, AddData) and event.new_data is not None
    ]


def check_integrity(bench: Any) -> None:
    """All blocks are accepted again from their bytes, and every slice matches its block."""
    state = fold(lambda name: bench.blobs.read(bench.dataset, ObjectKind.BLOCK, name), bench.state.head)
    assert state == bench.state
    for event, file in slice_files(bench):
        assert event.new_data is not None
        assert hash_slice(file) == event.new_data.logical_hash
        with file.open("rb") as content:
            assert physical_hash(content) == event.new_data.physical_hash


def test_a_snapshot_of_another_implementation_continues(bench_of: Any, tmp_path: Path) -> None:
    bench = bench_of("cities.population")
    schema = bench.state.schema
    push(bench, tmp_path, CITIES)
    assert bench.state.schema == schema, "no other schema is announced"
    assert stored_schema(schema_of_event(schema)).equals(slice_schema(slice_files(bench)[-1][1]))
    assert bench.values("op", "city", "population")[10:] == [
        (0, "Berlin", 4000000),
        (1, "Oslo", 709037),
        (0, "Porto", 231000),
        (1, "Vancouver", 700000),
    ]
    check_integrity(bench)


def test_a_column_that_another_implementation_requires_has_to_have_values(
    bench_of: Any, tmp_path: Path
) -> None:
    bench = bench_of("cities.population")
    head = bench.state.head
    with pytest.raises(
        InvalidInput, match="line 3: column founded: null is not allowed; a value of DATE is required"
    ):
        push(bench, tmp_path, CITIES.replace("0868-01-01", ""))
    assert bench.state.head == head


def test_a_polled_dataset_of_another_implementation_continues_by_push(bench_of: Any, tmp_path: Path) -> None:
    bench = bench_of("polled.weather")
    read = ReadStepCsv(
        ddl_schema=("event_time TIMESTAMP", "station STRING", "temp DOUBLE", "hum FLOAT"), header=True
    )
    bench.propose(DisablePollingSource(), AddPushSource(source_name="default", read=read, merge=APPEND))
    schema = bench.state.schema
    push(bench, tmp_path, "event_time,station,temp,hum\n2026-02-01T00:00:00Z,A,1.5,0.5\n")
    assert bench.state.schema == schema
    assert bench.values("offset", "op", "station", "temp")[-1] == (9, 0, "A", 1.5)
    check_integrity(bench)


@pytest.mark.parametrize("is_signed", [True, False])
def test_the_setting_applies_to_new_datasets(make_bench: Any, tmp_path: Path, is_signed: bool) -> None:
    bench = make_bench(is_signed=is_signed)
    text = '{"id":1,"v":"a","event_time":"2020-01-01T00:00:00Z"}\n'
    push(bench, tmp_path, text, key="a")
    drafter = bench.queues._committer._drafter
    drafter._is_signed = not is_signed
    push(bench, tmp_path, text, key="b")
    types = [slice_schema(file) for _, file in slice_files(bench)]
    assert types[0] == types[1]
    assert types[0].field("offset").type == (pa.int64() if is_signed else pa.uint64())
    assert types[0].field("op").type == (pa.int32() if is_signed else pa.uint8())
    assert bench.values("offset") == [(0,), (1,)]
    check_integrity(bench)


def test_a_timestamp_continues_in_the_unit_that_it_began_with(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench(None, ReadStepNdJson(ddl_schema=("event_time TIMESTAMP", "at TIMESTAMP(3)")))
    bench.propose(a_source("finer", "event_time TIMESTAMP", "at TIMESTAMP(6)"))
    text = '{"event_time":"2020-01-01T00:00:00Z","at":"2020-01-01T00:00:00.123456Z"}\n'
    push(bench, tmp_path, text, key="a")
    push(bench, tmp_path, text, key="b", source="finer")
    ((first,), (second,)) = bench.values("at")
    assert first == second
    check_integrity(bench)


def test_a_source_without_an_optional_column_leaves_it_null(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench()
    bench.propose(a_source("two", "event_time TIMESTAMP", "id BIGINT"))
    push(bench, tmp_path, '{"id":1,"v":"a","event_time":"2020-01-01T00:00:00Z"}\n')
    schema = bench.state.schema
    push(bench, tmp_path, '{"id":2,"event_time":"2020-01-01T00:00:00Z"}\n', source="two")
    assert bench.values("id", "v") == [(1, "a"), (2, None)]
    assert bench.state.schema == schema, "columns stay where they are"
    check_integrity(bench)


def test_a_source_without_a_required_column_is_refused_by_its_name(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench()
    bench.propose(a_source("two", "v STRING", "event_time TIMESTAMP"))
    push(bench, tmp_path, '{"id":1,"v":"a","event_time":"2020-01-01T00:00:00Z"}\n')
    with pytest.raises(InvalidInput, match="column id: is required"):
        push(bench, tmp_path, '{"v":"b","event_time":"2020-01-01T00:00:00Z"}\n', source="two")
    assert plan_of(bench.state, bench.state.push_sources["default"]).also_required == ()


def test_a_source_with_one_more_optional_column_evolves_the_schema(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench()
    bench.propose(a_source("two", "w INT", "id BIGINT NOT NULL", "v STRING", "event_time TIMESTAMP"))
    push(bench, tmp_path, '{"id":1,"v":"a","event_time":"2020-01-01T00:00:00Z"}\n', key="a")
    push(bench, tmp_path, '{"id":2,"w":5,"event_time":"2020-01-01T00:00:00Z"}\n', source="two")
    push(bench, tmp_path, '{"id":3,"v":"c","event_time":"2020-01-01T00:00:00Z"}\n', key="b")
    schemas = [event for event in bench.events() if isinstance(event, SetDataSchema)]
    assert [schema_of_event(event).names[4:] for event in schemas] == [["id", "v"], ["id", "v", "w"]]
    assert slice_schema(slice_files(bench)[-1][1]).names[4:] == ["id", "v", "w"]
    check_integrity(bench)


def test_a_snapshot_without_an_optional_column_retracts_whole_records(
    make_bench: Any, tmp_path: Path
) -> None:
    merge = MergeStrategySnapshot(primary_key=("id",))
    bench = make_bench(merge)
    bench.propose(a_source("two", "id BIGINT NOT NULL", "event_time TIMESTAMP", merge=merge))
    at = '"event_time":"2020-01-01T00:00:00Z"'
    push(bench, tmp_path, f'{{"id":1,"v":"a",{at}}}\n{{"id":2,"v":"b",{at}}}\n')
    push(bench, tmp_path, f'{{"id":2,{at}}}\n', source="two")
    assert bench.values("op", "id", "v")[2:] == [(1, 1, "a"), (2, 2, "b"), (3, 2, None)]
    check_integrity(bench)


def test_nullability_inside_lists_and_structs_continues_too(make_bench: Any, tmp_path: Path) -> None:
    strict = ("event_time TIMESTAMP", "s STRUCT<a: INT NOT NULL, b: ARRAY<INT NOT NULL>>")
    loose = ("event_time TIMESTAMP", "s STRUCT<a: INT, b: ARRAY<INT>>")
    bench = make_bench(None, ReadStepNdJson(ddl_schema=strict))
    bench.propose(a_source("loose", *loose))
    line = '{"event_time":"2020-01-01T00:00:00Z","s":%s}\n'
    push(bench, tmp_path, line % '{"a":1,"b":[1,2]}', key="a")
    schema = bench.state.schema
    push(
        bench, tmp_path, line % "null" + line % '{"a":2,"b":[3]}' + line % '{"a":2}', key="b", source="loose"
    )
    assert bench.values("s")[1:] == [(None,), ({"a": 2, "b": [3]},), ({"a": 2, "b": None},)]
    assert bench.state.schema == schema
    with pytest.raises(InvalidInput, match=r"column s\.a: is required in this dataset, and 1 records"):
        push(bench, tmp_path, line % "null" + line % '{"b":[3]}', key="c", source="loose")
    with pytest.raises(InvalidInput, match=r"column s\.b\[\]: is required"):
        push(bench, tmp_path, line % '{"a":1,"b":[3,null]}', key="d", source="loose")
    check_integrity(bench)


def test_a_uuid_is_a_key_like_any_other(make_bench: Any, tmp_path: Path) -> None:
    merge = MergeStrategySnapshot(primary_key=("u",))
    columns = ("u UUID NOT NULL", "n UUID", "event_time TIMESTAMP")
    bench = make_bench(merge, ReadStepNdJson(ddl_schema=columns))
    one, two = (f"123e4567-e89b-12d3-a456-42661417400{digit}" for digit in "ab")

    def line(key: str, value: str) -> str:
        return f'{{"u":"{key}","n":"{value}","event_time":"2020-01-01T00:00:00Z"}}\n'

    push(bench, tmp_path, line(two, one) + line(one, one), key="a")
    push(bench, tmp_path, line(one, two), key="b")
    a, b = UUID(one), UUID(two)
    assert bench.values("op", "u", "n") == [(0, a, a), (0, b, a), (2, a, a), (3, a, b), (1, b, a)]
    check_integrity(bench)


def test_a_repeated_snapshot_is_no_change_whatever_the_precision_of_its_timestamps(
    make_bench: Any, tmp_path: Path
) -> None:
    merge = MergeStrategySnapshot(primary_key=("id",))
    columns = ("id BIGINT NOT NULL", "event_time TIMESTAMP(6)", "at TIMESTAMP(6)")
    bench = make_bench(merge, ReadStepNdJson(ddl_schema=columns))
    text = '{"id":1,"event_time":"2020-01-01T00:00:00.123456Z","at":"2020-01-01T00:00:00.123456Z"}\n'
    push(bench, tmp_path, text, key="a")
    push(bench, tmp_path, text, key="b")
    assert bench.values("op", "id") == [(0, 1)]
