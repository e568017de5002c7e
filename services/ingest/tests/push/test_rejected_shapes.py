"""Bad rows of shapefiles, pushed or in messages, become dead letters that can be read again."""

import zipfile
from dataclasses import replace
from io import BytesIO
from typing import Any

import pytest
import shapefile
from odf_testing.letters import StoredLetters

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import MergeStrategyLedger, ReadStepEsriShapefile, ReadStepNdJson
from odf_ingest.control.rejected_messages import MessageLocation
from odf_ingest.errors import CannotRetry

from .in_memory_broker import TOPIC, Broker, running
from .test_rejected_rows import DDL
from .test_rejected_rows import pushing as pushing  # noqa: PLC0414 - a fixture

SHAPES = (*DDL, "geometry STRING")
NO_DAY = "is not a value of DATE; write it as 2026-01-31, or set dateFormat"


def a_shapefile(*rows: tuple[object, str], damage: tuple[bytes, bytes] = (b"", b"")) -> bytes:
    files = {name: BytesIO() for name in ("shp", "shx", "dbf")}
    with shapefile.Writer(**files, shapeType=shapefile.POINT) as writer:
        writer.field("id", "N", size=10)
        writer.field("day", "C", size=12)
        for number, row in enumerate(rows):
            writer.record(*row)
            writer.point(number, 0)
    archive = BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for name, content in files.items():
            file.writestr(f"places.{name}", content.getvalue().replace(*damage))
    return archive.getvalue()


@pytest.mark.parametrize(
    ("read", "input_format"),
    [
        (ReadStepEsriShapefile(ddl_schema=SHAPES), ""),
        (ReadStepNdJson(ddl_schema=SHAPES), "esrishapefile"),
    ],
    ids=["own", "format"],
)
def test_bad_rows_of_a_shapefile_are_dead_letters_that_are_read_again(
    pushing: Any, read: Any, input_format: str
) -> None:
    made = pushing(read=read)
    rows = [(1, "2024-01-01"), (2, "soon"), (None, ""), (4, "2024-01-04"), (5, "x")]
    outcome = made.push(a_shapefile(*rows), input_format=input_format)
    assert (made.ids, [one.reason for one in outcome.rejected]) == (
        [1, 4],
        [
            f"record 2: column day: 'soon' {NO_DAY}",
            "record 3: column id: null is not allowed; a value of BIGINT is required",
            f"record 5: column day: 'x' {NO_DAY}",
        ],
    )
    assert made.letters.sent[0].value == (
        b'{"id":2,"day":"soon","geometry":"{\\"type\\":\\"Point\\",\\"coordinates\\":[1.0,0.0]}"}'
    )
    with pytest.raises(CannotRetry, match=f"row/0 cannot be retried: column day: 'soon' {NO_DAY}"):
        made.retry()
    made.bench.propose(
        replace(made.bench.state.push_sources["default"], read=replace(read, ddl_schema=("id BIGINT",)))
    )
    assert (made.retry("row/0", "row/2").count, made.ids, made.open) == (2, [1, 4, 2, 5], ["row/1"])


def test_a_shapefile_without_a_declared_schema_rejects_rows_that_differ_from_its_dataset(
    pushing: Any,
) -> None:
    made = pushing(read=ReadStepEsriShapefile())
    made.push(a_shapefile((1, "a")), "one")
    made.bench.propose(
        replace(made.bench.state.push_sources["default"], merge=MergeStrategyLedger(primary_key=("id",)))
    )
    outcome = made.push(a_shapefile((2, "b"), (None, "c")), "two")
    assert (made.ids, [one.reason.partition(": null")[0] for one in outcome.rejected]) == (
        [1, 2],
        ["record 2: column id"],
    )


def test_a_damaged_attribute_refuses_its_shapefile_with_its_row_and_what_to_do(pushing: Any) -> None:
    made = pushing(read=ReadStepEsriShapefile(ddl_schema=SHAPES))
    damaged = a_shapefile((1, ""), (421421, ""), damage=(b"421421", b"42142l"))
    why = r"record 2: column id: '42142l' is not a number; correct it in the \.dbf file"
    with pytest.raises(InvalidInput, match=why):
        made.push(damaged)


def test_bad_rows_of_a_message_that_is_a_shapefile_are_dead_letters_too(
    make_bench: Any, broker: Broker
) -> None:
    bench = make_bench(None, ReadStepEsriShapefile(ddl_schema=SHAPES))
    with running(bench, broker) as node:
        node.ingest([a_shapefile((1, ""), (2, "soon")), b"junk", a_shapefile((3, ""))])
        assert node.ids == [1, 3]
        assert [one.reason for one in bench.coordinator.letters] == [
            f"message 0/0 of topic {TOPIC}, record 2: column day: 'soon' {NO_DAY}",
            "is not a readable ZIP archive: File is not a zip file",
        ]
        source = bench.state.push_sources["default"]
        bench.propose(replace(source, read=replace(source.read, ddl_schema=("id BIGINT",))))
        rejected = bench.rejected_messages(StoredLetters(bench.coordinator.letters))
        settled = rejected.retry(bench.dataset, [MessageLocation(source="", location="row/0")])
        assert (settled.count, node.ids) == (1, [1, 3, 2])
