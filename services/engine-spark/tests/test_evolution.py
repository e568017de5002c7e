"""Checks of a query that is to replace another one."""

from dataclasses import replace

import pyarrow as pa
import pytest
from odf_testing.engine import FLIGHTS, LATE, VOCAB, sql

from odf_common.adapters.grpc.engine_client import EngineClient
from odf_common.errors import InvalidQuery
from odf_common.metadata.events import DatasetVocabulary, TransformSql
from odf_common.ports.engine import Past, ValidatedQuery

COUNTED = "SELECT window.start AS event_time, count(*) AS n FROM flights GROUP BY window(time_hour, '1 hour')"
CARRIERS = "SELECT time_hour AS event_time, carrier, flight FROM flights"


def checked(engine: EngineClient, transform: TransformSql, past: Past | None = None) -> ValidatedQuery:
    return engine.validate(transform, {"flights": FLIGHTS}, {"flights": VOCAB}, DatasetVocabulary(), past)


def known(engine: EngineClient, query: str) -> pa.Schema:
    """Return the schema of a dataset that a query has written."""
    schema = checked(engine, sql(query)).schema
    assert schema is not None
    system = [("offset", pa.uint64()), ("op", pa.uint8()), ("system_time", pa.timestamp("ms", "UTC"))]
    return pa.schema([*(pa.field(name, type_, nullable=False) for name, type_ in system), *schema])


@pytest.mark.parametrize(
    "query", [CARRIERS, f"{CARRIERS} WHERE flight > 1", CARRIERS.replace("flight FROM", "flight, dest FROM")]
)
def test_columns_may_be_added(engine: EngineClient, query: str) -> None:
    assert checked(engine, sql(query), Past(schema=known(engine, CARRIERS))).schema is not None


@pytest.mark.parametrize(
    ("query", "text"),
    [
        (CARRIERS.replace("carrier, ", ""), "column carrier: cannot be removed"),
        (CARRIERS.replace("carrier", "carrier AS airline"), "column carrier: cannot be removed"),
        (
            CARRIERS.replace("flight FROM", "CAST(flight AS STRING) AS flight FROM"),
            "column flight: was INT",
        ),
    ],
)
def test_a_column_that_breaks_is_named(engine: EngineClient, query: str, text: str) -> None:
    with pytest.raises(InvalidQuery, match=text):
        checked(engine, sql(query), Past(schema=known(engine, CARRIERS)))


def test_a_query_that_can_reuse_the_state_of_the_old_one_is_accepted(engine: EngineClient) -> None:
    assert not checked(engine, sql(CARRIERS), Past(transform=sql(LATE))).is_stateful


def test_a_query_that_cannot_reuse_the_state_is_refused_with_the_reason(engine: EngineClient) -> None:
    with pytest.raises(InvalidQuery, match="cannot be migrated"):
        checked(engine, sql(COUNTED), Past(transform=sql(LATE)))


def test_the_old_query_may_be_from_another_version(engine: EngineClient) -> None:
    assert (
        checked(engine, sql(CARRIERS), Past(transform=replace(sql(LATE), version="0.0.1"))).schema is not None
    )


def test_the_position_of_an_error_is_reported(engine: EngineClient) -> None:
    with pytest.raises(InvalidQuery, match=r"line 2,? pos 0"):
        checked(engine, sql("SELECT time_hour AS event_time\nFORM flights"))
