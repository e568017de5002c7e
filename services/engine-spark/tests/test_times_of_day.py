"""A string with a time of day alone is no TIMESTAMP: Spark would read it as one of today."""

from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odf_testing.engine import FLIGHTS, VOCAB, Block, Make, flight, sql

from odf_common.adapters.grpc.engine_client import EngineClient
from odf_common.errors import InvalidQuery
from odf_common.metadata.engine_messages import RawQueryRequest
from odf_common.metadata.events import DatasetVocabulary
from odf_common.ports.engine import QueryFailed

NOON: Final = 1_772_366_400_000_000  # 2026-03-01T12:00:00Z, in µs
WITHOUT_DATE: Final = ("10:00", "T10", " 7:5:3.25", "\t10:00:00+02:00", ":30", "T10:00 Europe/Oslo")
WITH_DATE: Final = ("2026-03-01 12:00:00", " 2026-03-01T14:00:00+02:00 ", "2026-03-01 13:00:00 Europe/Oslo")
STRICT: Final = (
    "CAST(origin AS TIMESTAMP)",
    "to_timestamp(origin)",
    "timestamp(origin)",
    "origin::timestamp",
)
LENIENT: Final = ("try_cast(origin AS TIMESTAMP)", "try_to_timestamp(origin)")
NESTED: Final = "element_at(transform(array(origin), x -> CAST(x AS TIMESTAMP)), 1)"

EVERYWHERE: Final = (
    "SELECT time_hour AS event_time, flight FROM flights WHERE origin > time_hour",
    """SELECT a.time_hour AS event_time, a.flight FROM flights AS a JOIN flights AS b
    ON a.origin = b.time_hour AND b.time_hour BETWEEN a.time_hour AND a.time_hour + INTERVAL 1 HOUR""",
    """SELECT window.start AS event_time, max(CAST(origin AS TIMESTAMP)) FROM flights
    GROUP BY window(time_hour, '1 hour'), hour(origin)""",
    """SELECT max(time_hour) AS event_time, CAST(origin AS TIMESTAMP) AS t FROM flights
    GROUP BY CAST(origin AS TIMESTAMP)""",
    "SELECT time_hour AS event_time, flight FROM flights LATERAL VIEW explode(array(to_timestamp(origin))) AS t",
    "SELECT time_hour AS event_time, sum(hour(origin)) OVER (PARTITION BY flight ORDER BY time_hour) FROM flights",
)

INSIDE: Final = (
    "from_json(origin, 't TIMESTAMP')",
    "from_json(origin, 'ARRAY<TIMESTAMP>')",
    "from_json(origin, 'MAP<STRING, TIMESTAMP>')",
    "from_json(origin, 't TIMESTAMP', map('dateFormat', 'yyyy'))",
    "from_csv(origin, 'n INT, t TIMESTAMP')",
    "variant_get(parse_json(origin), '$.t', 'TIMESTAMP')",
    "try_variant_get(parse_json(origin), '$', 'STRUCT<t: TIMESTAMP>')",
    "parse_json(origin):t::timestamp",
    "CAST(parse_json(origin) AS ARRAY<TIMESTAMP>)",
    "CAST(array(origin) AS ARRAY<TIMESTAMP>)",
    "try_cast(array(origin) AS ARRAY<TIMESTAMP>)",
    "CAST(named_struct('n', 1, 't', map('a', origin)) AS STRUCT<n: INT, t: MAP<STRING, TIMESTAMP>>)",
    "concat(array(time_hour), array(origin))",
)
WITHOUT_TIME: Final = (
    "from_json(origin, 't TIMESTAMP', map('timestampFormat', 'HH:mm')).t",
    "from_csv(origin, 't TIMESTAMP', map('TimestampFormat', 'HH:mm')).t",
    "from_json(origin, 'timestamp STRING, t TIMESTAMP_NTZ, d DATE').d",
    "CAST(variant_get(parse_json(origin), '$.t', 'STRING') AS TIMESTAMP)",
    "element_at(CAST(array(time_hour) AS ARRAY<STRING>), 1)",
    "size(CAST(array(to_date(time_hour)) AS ARRAY<TIMESTAMP>))",
)


def _flights(texts: tuple[str, ...]) -> list[Block]:
    return [Block(rows=[flight(number, origin=text) for number, text in enumerate(texts)])]


@pytest.mark.parametrize("expression", LENIENT)
def test_it_is_null_where_other_strings_without_a_time_are(derive: Make, expression: str) -> None:
    query = sql(f"SELECT time_hour AS event_time, unix_micros({expression}) FROM flights")
    out = derive(query, flights=_flights((*WITHOUT_DATE, *WITH_DATE, "soon")))
    out.pull()
    assert [row[2] for row in out.rows()] == [*[None] * len(WITHOUT_DATE), *[NOON] * len(WITH_DATE), None]


@pytest.mark.parametrize("text", WITHOUT_DATE)
@pytest.mark.parametrize("expression", [*STRICT, NESTED])
def test_it_ends_the_query_and_is_named(derive: Make, expression: str, text: str) -> None:
    query = sql(f"SELECT time_hour AS event_time, {expression} AS t FROM flights")
    with pytest.raises(QueryFailed, match="a time of day without a date: "):
        derive(query, flights=_flights((text,))).pull()


@pytest.mark.parametrize("query", EVERYWHERE)
def test_it_is_found_wherever_strings_are_converted(derive: Make, query: str) -> None:
    blocks = [*_flights(("10:00",)), Block(watermark=2_000_000_000_000)]
    with pytest.raises(QueryFailed, match="a time of day without a date"):
        derive(sql(query), flights=blocks).pull()


def test_it_is_null_in_preprocess_too(engine: EngineClient, tmp_path: Path) -> None:
    source, out = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(pa.table({"at": [WITHOUT_DATE[0], WITH_DATE[0]]}), source)
    query = sql("SELECT unix_micros(try_to_timestamp(at)) AS at FROM input")
    request = RawQueryRequest(input_data_paths=(str(source),), transform=query, output_data_path=str(out))
    engine.execute_raw_query(request)
    assert pq.read_table(out).column("at").to_pylist() == [None, NOON]


@pytest.mark.parametrize("expression", INSIDE)
def test_strings_inside_of_other_values_are_refused_in_new_queries(
    engine: EngineClient, expression: str
) -> None:
    query = sql(f"SELECT time_hour AS event_time, to_json(struct({expression} AS x)) AS x FROM flights")
    asked = (query, {"flights": FLIGHTS}, {"flights": VOCAB}, DatasetVocabulary())
    with pytest.raises(
        InvalidQuery, match=r"a time of day without a date would be one of today; (give|get|CAST)"
    ):
        engine.validate(*asked, is_new=True)
    assert engine.validate(*asked).schema is not None  # what a chain has
    preprocess = sql(f"SELECT to_json(struct({expression} AS x)) AS x FROM input")
    with pytest.raises(InvalidQuery, match="would be one of today"):
        engine.validate_preprocess(preprocess, FLIGHTS)


def test_strings_with_a_format_and_other_types_are_not(engine: EngineClient) -> None:
    for expression in WITHOUT_TIME:
        query = sql(f"SELECT time_hour AS event_time, {expression} AS x FROM flights")
        asked = (query, {"flights": FLIGHTS}, {"flights": VOCAB}, DatasetVocabulary())
        assert engine.validate(*asked, is_new=True).schema is not None, expression
