import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from odf_testing.ingest_batches import commit_file

from odf_cli.user_input import with_read_options
from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepCsv, ReadStepJson, ReadStepNdJson, ReadStepParquet
from odf_ingest.errors import UnsupportedMediaType
from odf_ingest.read.arrow_ipc import ReadArrowIpc
from odf_ingest.read.input_format import InputFormat

COLUMNS = ("id BIGINT", "v STRING")
OWN = ReadStepNdJson(ddl_schema=COLUMNS, timestamp_format="yyyy")


def step(text: str, own: Any = OWN) -> Any:
    return InputFormat.parse(text).step(own)


@pytest.mark.parametrize("text", ["", "application/octet-stream", "ndjson", "application/x-ndjson"])
def test_the_sources_own_format_keeps_the_sources_options(text: str) -> None:
    assert step(text) == OWN


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("csv", ReadStepCsv),
        ("text/csv; charset=utf-8", ReadStepCsv),
        ("application/json", ReadStepJson),
        ("application/vnd.apache.parquet", ReadStepParquet),
        ("application/vnd.apache.arrow.stream", ReadArrowIpc),
        ("ARROW", ReadArrowIpc),
    ],
)
def test_another_format_has_the_sources_columns_and_no_option_of_it(text: str, kind: type) -> None:
    found = step(text)
    assert found.ddl_schema == COLUMNS
    assert isinstance(found, kind)
    assert getattr(found, "timestamp_format", None) is None


def test_arrow_for_a_parquet_source_is_not_read_as_parquet() -> None:
    assert type(step("arrow", ReadStepParquet())) is ReadArrowIpc


def test_csv_of_another_source_has_a_header_unless_it_is_denied() -> None:
    assert step("csv").header
    assert step("text/csv; header=absent").header is False
    own = ReadStepCsv(separator=";")
    assert step("csv", own) == own
    assert step("text/csv; header=present", own) == ReadStepCsv(separator=";", header=True)


def test_the_charset_of_a_media_type_is_the_encoding() -> None:
    assert step("text/csv; charset=ISO-8859-1").encoding == "iso-8859-1"
    with pytest.raises(InvalidInput, match="option encoding: the format does not have it; it has none"):
        step("application/parquet; charset=latin1")


@given(value=st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_options_are_parameters_of_the_format_whatever_they_contain(value: str) -> None:
    text = with_read_options("csv", [("nullValue", value), ("HEADER", "false")])
    expected = replace(step("csv"), header=False, null_value=value)
    assert step(text) == expected
    assert step(text.replace("csv", "text/csv", 1)) == expected


def test_options_change_those_of_the_source_in_its_own_format() -> None:
    own = ReadStepCsv(separator=";", null_value="NA", ddl_schema=COLUMNS)
    text = with_read_options("", [("separator", "tab"), ("escape", "\\"), ("quote", "'")])
    assert step(text, own) == replace(own, separator="\t", escape="\\", quote="'")
    assert step('application/octet-stream; separator="|"', own) == replace(own, separator="|")
    assert step("json; subPath=a.b; timestampformat=epochMillis") == ReadStepJson(
        ddl_schema=COLUMNS, sub_path="a.b", timestamp_format="epochMillis"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("text/csv; seperator=;", "option seperator: the format does not have it; did you mean separator"),
        ("csv; profile=x", "option profile: .* it has separator, encoding, quote, escape, header"),
        ("ndjson; separator=x", "option separator: .* it has dateFormat, encoding, timestampFormat"),
        ("text/csv; separator=||", "separator: '||' is not one ASCII character"),
        ("csv; header=maybe", "option header: expected true or false, got 'maybe'"),
        ("csv; schema=x", "option schema: the format does not have it"),
        ('text/csv; separator=";', "cannot be read at '\";'"),
        ("csv; timestampFormat=yy", "timestampFormat: .* write strftime's %y"),
    ],
)
def test_an_option_that_cannot_be_obeyed_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(why) if "||" in why else why):
        step(text)


def test_other_parameters_of_a_media_type_are_ignored() -> None:
    assert step("text/csv; profile=x; boundary=; ;") == step("csv")


def test_unknown_formats_are_refused_with_those_that_are_read() -> None:
    with pytest.raises(InvalidInput, match=r"unknown input format 'xml'; choose from arrow, csv, .*parquet"):
        InputFormat.parse("xml")
    with pytest.raises(UnsupportedMediaType, match="'application/xml'") as caught:
        InputFormat.parse("application/xml")
    assert "text/csv" in caught.value.advice()


def test_a_file_in_another_format_is_committed_by_its_columns_names(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench(None, ReadStepNdJson(ddl_schema=("id BIGINT NOT NULL", "v STRING")))
    csv = InputFormat.parse("csv")
    assert commit_file(bench, tmp_path / "batch", "v,id\na,1\nb,2\n", format=csv).count == 2
    assert bench.values("id", "v") == [(1, "a"), (2, "b")]


def test_types_of_csv_for_a_source_without_a_schema_are_inferred(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench(None, ReadStepNdJson())
    for number, (text, format_) in enumerate([('{"id": 1}\n', ""), ("id,v\n2,x\n", "csv")]):
        commit_file(bench, tmp_path / "batch", text, str(number), format=InputFormat.parse(format_))
    assert bench.values("id", "v") == [(1, None), (2, "x")]
