"""From one version of a query to the next, over the wire."""

from collections.abc import Callable
from pathlib import Path

import pytest

from odf_common.adapters.grpc_engine import EngineClient
from odf_common.errors import InvalidQuery
from odf_common.metadata.engine import TransformResponseSuccess
from odf_common.metadata.events import SetTransform, TransformInput
from odf_common.metadata.scalars import Timestamp
from odf_common.metadata.steps import TransformSql
from odf_common.metadata.vocabulary import DatasetVocabulary
from odf_common.ports.engine import MigrateInput, MigrateRequest
from odf_engine_spark.state import read_state
from odf_engine_spark.testing import FLIGHTS, LATE, VOCAB, Block, Derivative, flight, sql

Make = Callable[..., Derivative]
EARLY = "SELECT time_hour AS event_time, carrier FROM {} WHERE dep_delay < 0"

COUNTED = "SELECT window.start AS event_time, count(*) AS n FROM flights GROUP BY window(time_hour, '1 hour')"


def version(transform: TransformSql, alias: str = "flights") -> SetTransform:
    return SetTransform(inputs=(TransformInput(dataset_ref="did:odf:f01", alias=alias),), transform=transform)


def migrated(
    engine: EngineClient, old: SetTransform, new: SetTransform, checkpoint: Path | None, folder: Path
) -> TransformResponseSuccess:
    names = {str(each.alias) for each in (*old.inputs, *new.inputs)}
    return engine.migrate(
        MigrateRequest(
            old=old,
            new=new,
            inputs=tuple(MigrateInput(name=name, schema=FLIGHTS, vocab=VOCAB) for name in sorted(names)),
            vocab=DatasetVocabulary(),
            system_time=Timestamp.from_ms(9_000_000),
            next_offset=1,
            prev_checkpoint_path=None if checkpoint is None else str(checkpoint),
            new_checkpoint_path=str(folder / "migrated"),
            new_data_path=str(folder / "migrated-data"),
        )
    )


def test_a_query_that_acts_on_each_record_goes_on_from_the_same_checkpoint(
    derive: Make, engine: EngineClient, tmp_path: Path
) -> None:
    late = derive(sql(LATE), flights=[Block(rows=[flight(5, 70.0)], watermark=4)])
    late.pull()
    assert late.checkpoint is not None
    answer = migrated(
        engine, version(sql(LATE)), version(sql(EARLY.format("flights"))), late.checkpoint, tmp_path
    )
    assert answer == TransformResponseSuccess(new_watermark=Timestamp.from_ms(4))
    assert (tmp_path / "migrated").read_bytes() == late.checkpoint.read_bytes()
    assert not (tmp_path / "migrated-data").exists()


def test_watermarks_go_with_their_inputs_whatever_those_are_called(
    derive: Make, engine: EngineClient, tmp_path: Path
) -> None:
    late = derive(sql(LATE), flights=[Block(rows=[flight(5, 70.0)], watermark=4)])
    late.pull()
    new = version(sql(EARLY.format("f")), alias="f")
    migrated(engine, version(sql(LATE)), new, late.checkpoint, tmp_path)
    state = read_state(tmp_path / "migrated")
    assert dict(state.inputs) == {"f": 4_000_000}


def test_a_query_that_never_ran_begins_with_nothing(engine: EngineClient, tmp_path: Path) -> None:
    old, new = version(sql(LATE)), version(sql(EARLY.format("flights")))
    assert migrated(engine, old, new, None, tmp_path) == TransformResponseSuccess()
    assert read_state(tmp_path / "migrated") == read_state(None)


def test_records_that_wait_in_windows_are_not_carried_over(
    derive: Make, engine: EngineClient, tmp_path: Path
) -> None:
    late = derive(sql(LATE), flights=[Block(rows=[flight(5, 70.0)], watermark=4)])
    late.pull()
    with pytest.raises(InvalidQuery, match="make a new dataset"):
        migrated(engine, version(sql(LATE)), version(sql(COUNTED)), late.checkpoint, tmp_path)
    assert not (tmp_path / "migrated").exists()
