import json
from pathlib import Path

import pyarrow as pa
import pytest

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepJson
from odf_ingest.read import read_batch, read_file, read_records, split_file

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def test_a_file_is_an_array_of_objects(tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    file.write_text('[{"id": 1, "name": "ä"},\n {"id": 2}]')
    assert read_file(ReadStepJson(), file, SCHEMA).to_pylist() == [
        {"id": 1, "name": "ä"},
        {"id": 2, "name": None},
    ]


def test_the_array_may_be_nested_in_the_document() -> None:
    step = ReadStepJson(sub_path="result.rows")
    table = read_batch(step, b'{"result": {"rows": [{"id": 1}]}}', SCHEMA)
    assert table.column("id").to_pylist() == [1]


def test_white_space_and_other_members_of_the_document_do_not_matter() -> None:
    step = ReadStepJson(sub_path="result.rows")
    document = b"""
    { "before" : { "rows" : [ { "id" : 7 } ] } ,
      "result" : { "other" : "]" , "rows" : [ { "id" : 1 } , {"id":2} ] } ,
      "after" : [ ] }
    """
    assert read_batch(step, document, SCHEMA).column("id").to_pylist() == [1, 2]


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b'{"rows":[{"id":1} {"id":2}]}', "expected ',' at character 18"),
        (b'{"rows":[{"id":1},]}', "expected an array of objects"),
        (b'{"rows":[,{"id":1}]}', "expected an array of objects"),
        (b'{"rows":[{"id":1}],}', "Expecting value: line 1 column 20"),
        (b'{"rows":[{"id":1}]', "expected ',' at character 18"),
        (b'{"rows":[{"id":1}}', "expected ',' at character 17"),
        (b'{"rows":[{"id":1}]}]', "text after the document at character 19"),
        (b'{"rows":[{"id":1}]}\n{"rows":[]}', "at character 20; objects one after the other are NdJson"),
        (b'{"rows" [{"id":1}]}', "expected ':' at character 8"),
        (b'{"other":0 "rows":[{"id":1}]}', "expected ',' at character 11"),
        (b'{"rows":[{"id":1}],"rows":[{"id":2}]}', "has 'rows' twice"),
        (b'{"other":0,"rows":[{"id":1}],"other":1}', "has 'other' twice"),
        (b'{"rows":[{"id":1,"id":2}]}', "column id: is duplicated"),
        (b'{0:1,"rows":[{"id":1}]}', "expected a name at character 1"),
        (b'{"other":nought,"rows":[{"id":1}]}', "Expecting value: line 1 column 10"),
        (b'{"Rows":[{"id":1}]}', "has no member 'rows'"),
        (b'[{"rows":[{"id":1}]}]', "has no member 'rows'"),
        (b'{"rows":[1]}', "expected an array of objects"),
        (b'{"rows":null}', "expected an array of objects"),
    ],
)
def test_a_document_that_is_not_json_to_its_end_or_has_a_duplicate_key_is_refused(
    document: bytes, reason: str
) -> None:
    with pytest.raises(InvalidInput, match=reason):
        read_batch(ReadStepJson(sub_path="rows"), document, SCHEMA)


@pytest.mark.parametrize(("before", "line"), [("", 4), ("\n", 5)])
def test_the_bad_record_of_a_file_is_named(tmp_path: Path, before: str, line: int) -> None:
    file = tmp_path / "data.json"
    file.write_text(before + '{"rows":\n [{"id": 1}, {"id":\n 2}, {"id": 3},\n {"id": "x"}]}')
    with pytest.raises(InvalidInput, match=rf"^line {line}, record 4: "):
        read_file(ReadStepJson(sub_path="rows"), file, SCHEMA)


def test_a_message_is_an_object_or_an_array_of_one() -> None:
    table = read_records(ReadStepJson(), [b'{"id":1}', b'[{"id":2}]'], SCHEMA)
    assert table.column("id").to_pylist() == [1, 2]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"", "expected an array of objects"),
        (b"[]", "has 0 records instead of one"),
        (b"1", "expected an array of objects"),
        (b"[1]", "expected an array of objects"),
        (b'[{"id":1},{"id":2}]', "has 2 records instead of one"),
        (b"{", "expected one JSON object"),
        (b'{"id":"x"}', "changed from number to string in row 1"),
    ],
)
def test_a_message_that_is_not_one_record_is_refused(bad: bytes, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        read_records(ReadStepJson(), [b'{"id":1}', bad], SCHEMA)


def test_each_record_of_a_file_is_a_message_that_the_same_step_reads() -> None:
    step = ReadStepJson(sub_path="data.rows", encoding="utf-16")
    found = split_file(step, '{"data":{"rows":[{"id":1,"name":"a"},{"id":2,"name":"ü"}]}}'.encode("utf-16"))
    assert found is not None
    assert found.step == ReadStepJson(sub_path="data.rows")
    assert [json.loads(value) for value in found.values] == [
        {"data": {"rows": {"id": 1, "name": "a"}}},
        {"data": {"rows": {"id": 2, "name": "ü"}}},
    ]
    rows = [{"id": 1, "name": "a"}, {"id": 2, "name": "ü"}]
    assert read_records(found.step, found.values, SCHEMA).to_pylist() == rows
