"""The schemas accept what the decoder reads, refuse invalid input, and equal the published files."""

import copy
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from jsonschema import Draft202012Validator
from odf_testing.objects import objects, values
from odf_testing.profiles import examples
from odf_testing.story import derivative, ledger, root

from odf_common.codec.flatbuffers import Manifest
from odf_common.codec.json_schema import NAMES, schema_of, schema_text, text_of
from odf_common.codec.manifests import (
    block_from_text,
    event_from_text,
    snapshots_from_text,
    to_plain,
    to_yaml,
)
from odf_common.codec.model_schema import (
    EVENTS,
    Boolean,
    Bytes,
    EnumShape,
    Field,
    Integer,
    MapOf,
    OneOf,
    Shape,
    Spelled,
    TableShape,
    Text,
    TimestampShape,
    Vector,
    fields_of,
)
from odf_common.codec.yaml_syntax import documents
from odf_common.errors import InvalidInput
from odf_common.hashing.multibase import FINAL, encode
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata import engine_messages
from odf_common.metadata.events import DatasetSnapshot, MetadataBlock
from odf_common.resources.resource_schemas import schemas_by_name

HERE = Path(__file__).parents[4]
VECTORS = HERE / "tests" / "vectors"
LAWS = settings(max_examples=examples(60))
DECODERS: dict[str, Callable[[bytes, str], object]] = {
    "DatasetSnapshot": snapshots_from_text,
    "MetadataEvent": event_from_text,
    "MetadataBlock": block_from_text,
}


@cache
def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(schema_of(name))


def fits(name: str, plain: Any) -> bool:
    return bool(validator(name).is_valid(plain))


def is_read(name: str, plain: Any) -> bool:
    try:
        DECODERS[name](json.dumps(plain).encode(), name)
    except InvalidInput:
        return False
    return True


def plain_documents(text: bytes) -> Iterator[Any]:
    return (document.value for document in documents(text, "file"))


# --- the files -----------------------------------------------------------------------------------------------------


def test_the_files_equal_those_generated_from_the_model() -> None:
    folder = HERE / "docs" / "schemas"
    files = {str(file.relative_to(folder)): file.read_text("utf-8") for file in folder.rglob("*.json")}
    texts = {name: text_of(name) for name in NAMES}
    texts |= {name: schema_text(schema) for name, schema in schemas_by_name().items()}
    assert files == {f"{name}.json": text for name, text in texts.items()}, "run `make schemas`"


@pytest.mark.parametrize("name", NAMES)
def test_every_schema_is_valid(name: str) -> None:
    Draft202012Validator.check_schema(schema_of(name))


# --- what is accepted ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "file", sorted((HERE / "examples").rglob("*.yaml")), ids=lambda file: str(file.relative_to(HERE))
)
def test_examples_fit(file: Path) -> None:
    for plain in plain_documents(file.read_bytes()):
        validator("DatasetSnapshot").validate(plain)


def test_manifests_of_stories_fit() -> None:
    validator("DatasetSnapshot").validate(root("a", ["id BIGINT"], merge=ledger("id"), event_time="at"))
    validator("DatasetSnapshot").validate(derivative("b", {"a": "a"}, "SELECT 1"))


@pytest.mark.parametrize("file", sorted(VECTORS.rglob("*.log.yaml")), ids=lambda file: file.name)
def test_logs_of_other_implementations_fit(file: Path) -> None:
    found = list(plain_documents(file.read_bytes()))
    assert found
    for plain in found:
        validator("MetadataBlock").validate(plain)
        validator("MetadataEvent").validate(plain["content"]["event"])
        validator(plain["content"]["event"]["kind"]).validate(plain["content"]["event"])


def test_blocks_of_the_vectors_fit() -> None:
    for vector in json.loads((VECTORS / "metadata-blocks.json").read_bytes()):
        validator("MetadataBlock").validate(vector["block"])


@LAWS
@given(values(EVENTS))
def test_any_event_fits_as_yaml_and_as_json(event: Any) -> None:
    plain = json.loads(json.dumps(to_plain(event)))
    (read,) = plain_documents(to_yaml(event).encode())
    for name in ("MetadataEvent", type(event).__name__):
        validator(name).validate(plain)
        validator(name).validate(read)
        validator(name).validate({"kind": "MetadataEvent", "version": 1, "content": plain})


@LAWS
@given(objects(DatasetSnapshot), objects(MetadataBlock))
def test_any_snapshot_and_any_block_fit(snapshot: Any, block: Any) -> None:
    content = to_plain(snapshot)
    validator("DatasetSnapshot").validate({"kind": "DatasetSnapshot", "version": 1, "content": content})
    validator("MetadataBlock").validate(to_plain(block))
    for version in (2, 3):
        manifest = {"kind": "MetadataBlock", "version": version, "content": to_plain(block)}
        validator("MetadataBlock").validate(manifest)


def push_source(**read: Any) -> dict[str, Any]:
    return {"kind": "AddPushSource", "sourceName": "s", "read": {"kind": "Csv", **read}, "merge": "Append"}


def polling(**fetch: Any) -> dict[str, Any]:
    step = {"kind": "url", "url": "http://x", **fetch}
    return {"kind": "setPollingSource", "fetch": step, "read": "ndjson", "merge": {"kind": "append"}}


HASH = Multihash.sha3(bytes(range(32)))
ID = DatasetId.of_key(bytes(range(32)))
COLUMNS = {"fields": [{"name": "a", "type": "uint8", "extra": {"any": [1]}}]}
SPELLINGS: list[Any] = [
    "DisablePollingSource",
    "addData",
    {"kind": "setvocab", "offsetColumn": None},
    {"kind": "SetDataSchema", "schema": "AAECAw=="},
    {"kind": "SetDataSchema", "rawArrowSchema": "AAECAw=="},
    {"kind": "SetDataSchema", "schema": COLUMNS},
    {"kind": "SetDataSchema", "rawArrowSchema": "AAECAw==", "schema": COLUMNS},
    {"kind": "AddData", "newWatermark": "2020-01-01 12:00:00.5+01:00"},
    *({"kind": "AddData", "prevCheckpoint": encode(HASH.raw, base)} for base in FINAL),
    *(
        {"kind": "Seed", "datasetId": f"did:odf:{encode(ID.raw, base)}", "datasetKind": "root"}
        for base in FINAL
    ),
    push_source(schema=["a INT"]),
    push_source(ddlSchema=["a INT"]),
    push_source(schema=COLUMNS),
    push_source(schema=COLUMNS, ddlSchema=["a INT"]),
    push_source(ddlSchema=None, schema=["a INT"]),
    polling(eventTime="fromMetadata", cache="Forever"),
    polling(eventTime={"kind": "FromPath", "pattern": "x"}, cache={"kind": "forever"}, headers=[]),
]


@pytest.mark.parametrize("plain", SPELLINGS, ids=json.dumps)
def test_every_way_to_write_an_event_is_accepted_by_both(plain: Any) -> None:
    manifest = {"kind": "MetadataEvent", "version": 1, "content": plain}
    event = event_from_text(json.dumps(plain).encode(), "event")
    assert event_from_text(json.dumps(manifest).encode(), "event") == event
    for name in ("MetadataEvent", type(event).__name__):
        validator(name).validate(plain)
        validator(name).validate(manifest)


# --- what is refused -----------------------------------------------------------------------------------------------


WRONG: list[Any] = [
    None,
    "text",
    "SetLicense",
    {"description": "no kind"},
    {"kind": "SetInf"},
    {"kind": "SETINFO"},
    {"kind": "SetInfo", "descripton": "a"},
    {"kind": "SetInfo", "description": 1},
    {"kind": "SetInfo", "keywords": "a"},
    {"kind": "SetInfo", "keywords": [None]},
    {"kind": "SetLicense", "shortName": "MIT", "name": "MIT"},
    {"kind": "DisablePushSource", "sourceName": None},
    {"kind": "AddData", "prevOffset": -1},
    {"kind": "AddData", "prevOffset": 1 << 64},
    {"kind": "AddData", "prevOffset": True},
    {"kind": "AddData", "newWatermark": "2020-01-01T12:00:00"},
    {"kind": "AddData", "newWatermark": "yesterday"},
    {"kind": "AddData", "prevCheckpoint": "1620"},
    {"kind": "AddData", "prevCheckpoint": "f162"},
    {"kind": "AddData", "extra": []},
    {"kind": "Seed", "datasetId": "did:key:fed01" + "ab" * 32, "datasetKind": "Root"},
    {"kind": "Seed", "datasetId": "did:odf:fed01" + "ab" * 32, "datasetKind": "Rooted"},
    {"kind": "SetDataSchema", "rawArrowSchema": "AAEC*w=="},
    {"kind": "SetDataSchema", "schema": "AAEC", "rawArrowSchema": "AAEC"},
    {"kind": "SetDataSchema", "schema": ["a INT"]},
    push_source(schema=["a INT"], ddlSchema=["a INT"]),
    push_source(schema=[{"a": "INT"}]),
    push_source(schema={"fields": [{"name": "a", "type": "Decimal"}]}),
    push_source(header="yes"),
    polling(eventTime="FromPath"),
    {"kind": "MetadataEvent", "version": 2, "content": "AddData"},
    {"kind": "MetadataEvent", "version": True, "content": "AddData"},
    {"kind": "MetadataEvent", "content": "AddData"},
    {"kind": "MetadataEvent", "version": 1, "content": "AddData", "more": 1},
]


@pytest.mark.parametrize("plain", WRONG, ids=json.dumps)
def test_wrong_events_are_refused_by_both(plain: Any) -> None:
    assert not is_read("MetadataEvent", plain)
    assert not fits("MetadataEvent", plain)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "datasetSnapshot"},
        {"kind": "MetadataBlock"},
        {"version": 2},
        {"version": "1"},
        {"content": None},
        {"content": {"name": "a", "kind": "Root"}},
        {"content": {"name": "a", "kind": "ROOT", "metadata": []}},
        {"content": {"name": "a", "kind": "Root", "metadata": {}}},
        {"content": {"name": 1, "kind": "Root", "metadata": []}},
        {"content": {"name": "a", "kind": "Root", "metadata": [{"kind": "SetVocb"}]}},
        {"more": None},
    ],
    ids=json.dumps,
)
def test_wrong_snapshots_are_refused_by_both(change: dict[str, Any]) -> None:
    right = root("a", ["id BIGINT"])
    assert is_read("DatasetSnapshot", right)
    assert fits("DatasetSnapshot", right)
    assert not is_read("DatasetSnapshot", right | change)
    assert not fits("DatasetSnapshot", right | change)


@pytest.mark.parametrize("version", [1, 4, "3"])
def test_blocks_of_other_versions_are_refused_by_both(version: Any) -> None:
    content = {"systemTime": "2020-01-01T00:00:00Z", "sequenceNumber": 0, "event": "AddData"}
    manifest = {"kind": "MetadataBlock", "version": version, "content": content}
    assert not is_read("MetadataBlock", manifest)
    assert not fits("MetadataBlock", manifest)


def test_the_schema_of_an_event_takes_no_other() -> None:
    assert not fits("SetInfo", {"kind": "SetVocab"})
    assert not fits("SetInfo", {"kind": "MetadataEvent", "version": 1, "content": {"kind": "SetVocab"}})


# --- both at once --------------------------------------------------------------------------------------------------


ODD: list[Any] = [None, True, 1, -1, 1.5, "", "x", "Csv", "Root", [], ["x"], {}, {"kind": "Bool"}]


def places(plain: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


@settings(max_examples=examples(300))
@given(values(EVENTS), some.data())
def test_what_the_decoder_reads_of_a_changed_event_the_schema_accepts(
    event: Any, data: some.DataObject
) -> None:
    plain = copy.deepcopy(to_plain(event))
    *path, last = data.draw(some.sampled_from(list(places(plain))))
    holder = plain
    for key in path:
        holder = holder[key]
    held = holder[last]
    others = [*ODD, held.lower(), held[:1].lower() + held[1:]] if isinstance(held, str) else ODD
    holder[last] = data.draw(some.sampled_from(others))
    if is_read("MetadataEvent", plain):
        validator("MetadataEvent").validate(plain)


FILE = Path(__file__).parents[4] / "proto" / "flatbuffers" / "opendatafabric.fbs"
TEXT = re.sub(r"//.*", "", FILE.read_text())
ROOTS = (
    Manifest,
    MetadataBlock,
    engine_messages.RawQueryRequest,
    engine_messages.RawQueryResponseRoot,
    engine_messages.TransformRequest,
    engine_messages.TransformResponseRoot,
)
# Tables that have no class: how FlatBuffers says "vector of a union".
WRAPPERS = {"PrepStepWrapper": "value: PrepStep", "MetadataEventWrapper": "value: MetadataEvent"}


def blocks(word: str) -> dict[str, str]:
    return dict(re.findall(rf"^{word} (\w+(?:: \w+)?) \{{([^}}]*)\}}", TEXT, re.MULTILINE))


def declared(body: str) -> list[str]:
    return [" ".join(line.split()) for line in body.split(";") if line.strip()]


def members(body: str) -> list[str]:
    return [name.strip() for name in body.split(",")]


def classes() -> dict[str, type]:
    """Every table reachable from a root."""
    found: dict[str, type] = {}
    left = list(ROOTS)
    while left:
        cls = left.pop()
        if cls.__name__ not in found:
            found[cls.__name__] = cls
            left += [part for field in fields_of(cls) for part in parts(field.shape)]
    return found


def parts(shape: Shape) -> tuple[type, ...]:
    match shape:
        case TableShape(of):
            return (of,)
        case OneOf(of, _):
            return of
        case Vector(of):
            return parts(of)
        case _:
            return ()


def union_name(union: OneOf) -> str:
    return "MetadataEvent" if union is EVENTS else union.prefix


def type_name(shape: Shape) -> str:  # noqa: C901 - one case a shape
    match shape:
        case Integer(width):
            return f"{'int' if width.signed else 'uint'}{8 * width.size}"
        case Boolean():
            return "bool"
        case EnumShape(of, _):
            return of.__name__
        case Text():
            return "string"
        case Bytes():
            return "[ubyte]"
        case TimestampShape():
            return "Timestamp"
        case TableShape(of):
            return of.__name__
        case OneOf():
            return union_name(shape)
        case Vector(OneOf() as union):
            return f"[{union_name(union)}Wrapper]"
        case Vector(of):
            return f"[{type_name(of)}]"
        case Spelled() | MapOf():
            raise AssertionError("only in specs of resources")


def line(field: Field) -> str:
    nullable = field.is_optional and isinstance(field.shape, Integer | Boolean | EnumShape)
    return f"{field.name}: {type_name(field.shape)}{' = null' if nullable else ''}"


def test_every_table_has_its_class_and_every_class_its_table() -> None:
    assert set(blocks("table")) == set(classes()) | set(WRAPPERS)


@pytest.mark.parametrize("name", sorted(classes()))
def test_fields_have_the_same_names_types_and_order(name: str) -> None:
    assert declared(blocks("table")[name]) == [line(field) for field in fields_of(classes()[name])]


def test_wrappers_hold_their_union() -> None:
    assert {name: "; ".join(declared(blocks("table")[name])) for name in WRAPPERS} == WRAPPERS


def test_unions_have_the_same_members_in_order() -> None:
    shapes = [field.shape for cls in classes().values() for field in fields_of(cls)]
    inner = [shape.of if isinstance(shape, Vector) else shape for shape in shapes]
    unions = {shape for shape in inner if isinstance(shape, OneOf)}
    expected = {union_name(union): [member.__name__ for member in union.members] for union in unions}
    assert {name: members(body) for name, body in blocks("union").items()} == expected


def test_enums_have_the_same_width_and_values() -> None:
    shapes = [field.shape for cls in classes().values() for field in fields_of(cls)]
    choices = {shape for shape in shapes if isinstance(shape, EnumShape)}
    expected = {f"{c.of.__name__}: int{8 * c.width.size}": list(c.of.__members__) for c in choices}
    assert {name: members(body) for name, body in blocks("enum").items()} == expected
    assert all([choice.value for choice in c.of] == list(range(len(c.of))) for c in choices)
