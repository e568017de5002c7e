import pyarrow as pa
import pytest

from odf_cli.manifest_draft import draft, key_of_changes
from odf_common.codec.manifests import snapshots_from_text
from odf_common.data.ddl import ddl_to_schema
from odf_common.metadata.events import AddPushSource, MergeStrategyUpsertStream, ReadStepCsv, SetVocab

TIME = pa.timestamp("us", "UTC")


def events(text: str) -> dict[type, object]:
    (snapshot,) = snapshots_from_text(text.encode(), "draft.yaml")
    return {type(event): event for event in snapshot.metadata}


def test_the_manifest_declares_the_columns() -> None:
    columns = pa.schema([("id", pa.int64()), ("a, b", pa.list_(pa.string())), ("when", TIME)])
    made = draft("me/orders", "csv", columns, {"header": "true", "separator": "\t", "nullValue": "true"})
    (snapshot,) = snapshots_from_text(made.text.encode(), "draft.yaml")
    found = events(made.text)
    source = found[AddPushSource]
    assert isinstance(source, AddPushSource)
    assert str(snapshot.name) == "me/orders"
    assert isinstance(source.read, ReadStepCsv)
    assert (source.read.header, source.read.separator, source.read.null_value) == (True, "\t", "true")
    assert source.read.ddl_schema is not None
    assert ddl_to_schema(source.read.ddl_schema).names == ["id", "a, b", "when"]
    assert found[SetVocab] == SetVocab(event_time_column="when")
    assert "UpsertStream" in made.text


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["created", "Timestamp", "day"], "Timestamp"),
        (["created", "updated"], "created"),
        (["created", "event_time"], None),  # the default's name
    ],
)
def test_the_event_time_is_a_column_with_times_of_a_usual_name(names: list[str], chosen: str | None) -> None:
    made = draft("a", "ndjson", pa.schema([(name, TIME) for name in names]), {})
    vocabulary = events(made.text).get(SetVocab)
    assert vocabulary == (None if chosen is None else SetVocab(event_time_column=chosen))


def test_an_event_time_is_declared_in_milliseconds() -> None:
    made = draft("a", "parquet", pa.schema([("at", TIME), ("seen", TIME)]), {})
    assert "- at TIMESTAMP(3)\n" in made.text
    assert "- seen TIMESTAMP(6)\n" in made.text


def test_without_times_records_have_the_time_of_their_push() -> None:
    made = draft("a", "json", pa.schema([("id", pa.int64())]), {})
    assert SetVocab not in events(made.text)
    (remark,) = made.remarks
    assert "no column has times" in remark


def test_system_columns_give_way_to_columns_of_their_names() -> None:
    columns = pa.schema([(name, pa.string()) for name in ("OP", "offset", "odf_offset", "event_time")])
    made = draft("a", "csv", columns, {})
    assert events(made.text)[SetVocab] == SetVocab(
        offset_column="odf_odf_offset", operation_type_column="odf_op", event_time_column="odf_event_time"
    )
    assert "column OP of the data has the name of a system column, which is odf_op" in "".join(made.remarks)
    assert len(made.remarks) == 4


@pytest.mark.parametrize(
    "key", [b'{"id": 1, "no": 2}', b'{"schema": {"x": 1}, "payload": {"id": 1, "no": 2}}']
)
def test_changes_are_merged_by_their_key_and_have_the_time_of_their_source(key: bytes) -> None:
    columns = pa.schema([("id", pa.int64()), ("no", pa.int64()), ("created", TIME), ("event_time", TIME)])
    found = key_of_changes([None, b"\x00", b"7", key], columns)
    made = draft("a", "ndjson", columns, {}, key_of_changes=found)
    source = events(made.text)[AddPushSource]
    assert isinstance(source, AddPushSource)
    assert source.merge == MergeStrategyUpsertStream(primary_key=("id", "no"))
    assert events(made.text)[SetVocab] == SetVocab(event_time_column="odf_event_time")
    assert made.event_time == ""
    (remark,) = made.remarks
    assert "event_time of the data has the name of a system column" in remark


@pytest.mark.parametrize("key", [None, b"1", b"[]", b'{"other": 1}'])
def test_an_unknown_key_of_changes_is_left_to_the_author(key: bytes | None) -> None:
    columns = pa.schema([("id", pa.int64())])
    made = draft("a", "ndjson", columns, {}, key_of_changes=key_of_changes([key], columns))
    assert "merge: {kind: UpsertStream, primaryKey: [PRIMARY_KEY]}" in made.text
    assert "instead of PRIMARY_KEY" in made.remarks[0]
