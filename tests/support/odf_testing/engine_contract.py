"""Contract of the port `Engine` as tests; see `contracts`. The engine in memory and Spark keep it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest

from odf_common.errors import InvalidQuery
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.engine_messages import TransformRequest, TransformResponseSuccess
from odf_common.metadata.events import DatasetVocabulary, SetTransform, TransformInput
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import (
    Engine,
    EngineNotAvailable,
    EngineProgress,
    MigrateRequest,
    PlannedInput,
    QueryTable,
)
from odf_testing.engine import FLIGHTS, HOUR, Block, Chain, Derivative, flight, ms, sql

VOCAB = DatasetVocabulary()
SCHEMA = pa.schema(
    [field.with_name("event_time") if field.name == "time_hour" else field for field in FLIGHTS]
)
ALL = sql("SELECT event_time, carrier, flight, origin, dest, dep_delay FROM flights")
FLIGHT = 3  # its column in a row of `Derivative.rows`
NOON = 12 * HOUR


@dataclass(frozen=True)
class _Executing:
    engine: Engine

    def execute(self, request: TransformRequest) -> TransformResponseSuccess:
        return self.engine.execute_transform(request)


def derivative(engine: Engine, folder: Path, blocks: Sequence[Block]) -> Derivative:
    """Return a dataset with all records of one input."""
    flights = Chain(name="flights", schema=SCHEMA, vocab=VOCAB, folder=folder)
    for one in blocks:
        flights.add(one)
    return Derivative(transforms=_Executing(engine), transform=ALL, chains=[flights], folder=folder)


def block(*numbers: int, watermark: int | None = None) -> Block:
    """Return a block with one flight for each number."""
    return Block(rows=[flight(NOON + number, number=number) for number in numbers], watermark=watermark)


def only_request(out: Derivative) -> TransformRequest:
    """Return the request for all blocks."""
    (chain,) = out.chains
    return out.request([0], [len(chain.blocks)], out.folder / "data", out.folder / "checkpoint")


class EngineContract:
    """A query that returns all records unchanged; fixtures: `engine`, and pytest's `tmp_path`."""

    def test_records_get_consecutive_offsets_in_the_order_of_the_slices(
        self, engine: Engine, tmp_path: Path
    ) -> None:
        """From the request's next offset; the answer has their interval."""
        out = derivative(engine, tmp_path, [block(5, 2), block(9, 1, 3), block(4)])
        for until, first, last in ((2, 0, 4), (3, 5, 5)):
            interval = out.pull(until).new_offset_interval
            assert interval is not None
            assert (interval.start, interval.end) == (first, last)
            assert out.tables[-1]["offset"].to_pylist() == list(range(first, last + 1))
        assert [row[FLIGHT] for row in out.rows()] == [5, 2, 9, 1, 3, 4]

    def test_a_request_without_records_returns_none(self, engine: Engine, tmp_path: Path) -> None:
        """And no interval; a file of zero records has the output's schema."""
        out = derivative(engine, tmp_path, [block(1, watermark=NOON), Block(watermark=NOON + HOUR)])
        out.pull(1)
        answer = out.pull(2)
        assert answer.new_offset_interval is None
        assert ms(answer) == NOON + HOUR
        assert out.tables[1].schema.names == out.tables[0].schema.names

    def test_a_watermark_is_repeated_until_the_input_has_a_later_one(
        self, engine: Engine, tmp_path: Path
    ) -> None:
        """Requests carry only new ones; the checkpoint has the last."""
        out = derivative(
            engine, tmp_path, [block(1), block(2, watermark=NOON), block(3), block(4, watermark=NOON + 5)]
        )
        assert [ms(out.pull(until)) for until in (1, 2, 3, 4)] == [None, NOON, NOON, NOON + 5]

    def test_the_same_request_gives_the_same_bytes(self, engine: Engine, tmp_path: Path) -> None:
        """Data and checkpoint."""
        out = derivative(engine, tmp_path, [block(*range(20), watermark=NOON)])
        request = only_request(out)
        written = []
        for _ in range(2):
            engine.execute_transform(request)
            files = [Path(request.new_data_path), Path(request.new_checkpoint_path)]
            written.append([file.read_bytes() for file in files])
            for file in files:
                file.unlink()
        assert written[0] == written[1]

    def test_the_last_report_of_progress_comes_before_the_answer(
        self, engine: Engine, tmp_path: Path
    ) -> None:
        """Reports never count beyond their total."""
        seen: list[EngineProgress] = []
        out = derivative(engine, tmp_path, [block(1, 2)])
        engine.execute_transform(only_request(out), seen.append)
        assert all(one.rows <= one.total for one in seen)

    def test_a_query_that_is_not_sql_is_refused(self, engine: Engine) -> None:
        """With its position."""
        with pytest.raises(InvalidQuery, match="line 1"):
            engine.validate(sql("SELEC 1"), {}, {}, VOCAB)

    def test_a_valid_query_has_its_tables_and_columns(self, engine: Engine) -> None:
        """The columns of the output, if the inputs' are given."""
        found = engine.validate(ALL, {"flights": SCHEMA}, {"flights": VOCAB}, VOCAB)
        assert found.tables == ("flights",)
        assert not found.is_stateful
        assert found.schema is not None
        assert {"event_time", "carrier", "dep_delay"} <= set(found.schema.names)

    def test_another_version_of_the_engine_is_not_available(self, engine: Engine, tmp_path: Path) -> None:
        """Neither to check a query nor to run one."""
        other = replace(ALL, version="0.0.0-none")
        with pytest.raises(EngineNotAvailable):
            engine.validate(other, {"flights": SCHEMA}, {"flights": VOCAB}, VOCAB)
        request = only_request(derivative(engine, tmp_path, [block(1)]))
        with pytest.raises(EngineNotAvailable):
            engine.execute_transform(replace(request, transform=other))
        assert not Path(request.new_data_path).exists()

    def test_a_migration_keeps_the_watermark(self, engine: Engine, tmp_path: Path) -> None:
        """The new version continues from the checkpoint that it writes."""
        out = derivative(engine, tmp_path, [block(1, watermark=NOON), block(2)])
        out.pull(1)
        step = SetTransform(
            inputs=(TransformInput(dataset_ref=str(DatasetId.of_key(bytes(32))), alias="flights"),),
            transform=ALL,
        )
        answer = engine.migrate(
            MigrateRequest(
                old=step,
                new=step,
                inputs=(PlannedInput(name="flights", schema=SCHEMA, vocab=VOCAB),),
                vocab=VOCAB,
                system_time=Timestamp.from_ms(9_000_000),
                next_offset=out.next_offset,
                prev_checkpoint_path=str(out.checkpoint),
                new_checkpoint_path=str(tmp_path / "migrated"),
                new_data_path=str(tmp_path / "migrated-data"),
            )
        )
        assert (answer.new_offset_interval, ms(answer)) == (None, NOON)
        out.checkpoint = tmp_path / "migrated"
        assert ms(out.pull(2)) == NOON
        assert [row[FLIGHT] for row in out.rows()] == [1, 2]

    def test_an_ad_hoc_query_reads_whole_datasets(self, engine: Engine, tmp_path: Path) -> None:
        """Empty ones too."""
        out = derivative(engine, tmp_path, [block(1), block(2, 3)])
        (chain,) = out.chains
        paths = tuple(str(each[1]) for each in chain.blocks)
        assert engine.tables_of("SELECT flight FROM flights") == ("flights",)
        for data_paths, numbers in ((paths, [1, 2, 3]), ((), [])):
            table = QueryTable(name="flights", schema=SCHEMA, data_paths=data_paths)
            found = engine.query("SELECT flight FROM flights", (table,))
            assert sorted(found["flight"].to_pylist()) == numbers
