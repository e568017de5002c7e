"""The schema file and the dataclasses are consistent."""

import re
from pathlib import Path

import pytest

from odf_common.codec.flatbuffers import Manifest
from odf_common.codec.model_schema import (
    EVENTS,
    Boolean,
    Bytes,
    EnumShape,
    Field,
    Integer,
    OneOf,
    Shape,
    TableShape,
    Text,
    TimestampShape,
    Vector,
    fields_of,
)
from odf_common.metadata import engine_messages
from odf_common.metadata.events import MetadataBlock

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
