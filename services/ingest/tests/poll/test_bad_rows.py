"""A row that does not fit refuses its file; the error names file, line, column, value and expected type."""

import gzip
from pathlib import Path
from typing import Any

import pytest
from odf_testing.webserver import Page, PageServer

from odf_common.errors import InvalidInput
from odf_common.metadata.fetching import (
    CompressionFormat,
    FetchStepFilesGlob,
    FetchStepUrl,
    PrepStepDecompress,
)
from odf_common.metadata.steps import ReadStep, ReadStepCsv, ReadStepJson, ReadStepNdJson

DDL = ("id BIGINT NOT NULL", "day DATE", "price DOUBLE")
CSV = ReadStepCsv(header=True, ddl_schema=DDL)
ARRAY = ReadStepJson(ddl_schema=DDL)
LINES = ReadStepNdJson(ddl_schema=DDL)


@pytest.mark.parametrize(
    ("read", "content", "place"),
    [
        (
            CSV,
            "id,day,price\n1,2024-01-05,1\n2,2024-01-05,cheap\n",
            "line 3: column price: 'cheap' is not a value of DOUBLE",
        ),
        (CSV, "id,day,price\n1,2024-13-05,1.5\n", "line 2: column day: '2024-13-05' is not a value of DATE"),
        (CSV, "id,day,price\n1,2024-01-05,1\n,2024-01-05,1\n", "record 2: has no id"),
        (CSV, "id,day,price\n1,2024\n", "line 2: has 2 values instead of 3 (id, day, price): 1,2024"),
        (LINES, '{"id":1}\n{"id":"x"}\n', "line 2: column id: 'x' is not a value of BIGINT"),
        (
            LINES,
            '{"id":1}\n{"id":2,"price":"cheap"}\n',
            "line 2: column price: 'cheap' is not a value of DOUBLE",
        ),
        (LINES, '{"id":1}\n{"id":\n', "line 2: is not one JSON object"),
        (ARRAY, '[{"id":1},\n{"id":2,"day":"soon"}]', "record 2: column day: 'soon' is not a value of DATE"),
    ],
    ids=["number", "date", "null", "width", "line-number", "line-type", "line-json", "array"],
)
def test_a_row_that_does_not_fit_is_named(  # noqa: PLR0917
    make_polled: Any, poll: Any, tmp_path: Path, read: ReadStep, content: str, place: str
) -> None:
    (tmp_path / "a-1.txt").write_text(content)
    bench = make_polled(FetchStepFilesGlob(path=f"{tmp_path}/*.txt"), read=read)
    with pytest.raises(InvalidInput) as caught:
        poll(bench)
    assert str(caught.value) == f"a-1.txt, {place}"
    assert bench.rows() == []


def test_the_place_is_named_after_unpacking(make_polled: Any, poll: Any, web: PageServer) -> None:
    web.pages["/a.gz"] = Page(body=gzip.compress(b'{"id":1}\n{"id":"x"}\n'), etag='"1"')
    steps = (PrepStepDecompress(format=CompressionFormat.Gzip),)
    bench = make_polled(FetchStepUrl(url=f"{web.url}/a.gz"), read=LINES, prepare=steps)
    with pytest.raises(InvalidInput, match=r"/a.gz, line 2: column id: 'x' is not a value of BIGINT"):
        poll(bench)
