"""docs/reference/manifests.md names every field of the model, and its examples are valid manifests."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from odf_testing.coordinator import Coordinator

from odf_common.codec.manifests import block_from_text, event_from_text, from_plain, snapshots_from_text
from odf_common.codec.model_schema import OneOf, Shape, TableShape, Vector, fields_of, union_with
from odf_common.codec.plain_values import camel, tag_of
from odf_common.codec.yaml_syntax import documents
from odf_common.metadata.data_schema import DataSchema
from odf_common.metadata.events import (
    AddPushSource,
    DatasetSnapshot,
    MetadataBlock,
    SetPollingSource,
    SetTransform,
)
from odf_common.metadata.scalars import ExtraAttributes
from odf_common.resources.registry import Types
from odf_common.resources.resource_manifests import manifests_of, written_resources

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reference" / "manifests.md").read_text("utf-8")
YAML = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = YAML.findall(PAGE)
OTHERS = [
    example for page in sorted(DOCS.glob("guide/*.md")) for example in YAML.findall(page.read_text("utf-8"))
]
SECTIONS = dict(re.findall(r"^### (.+)\n((?:(?!^##).*\n)*)", PAGE, re.MULTILINE))
ROW = re.compile(r"^\| (`.+?`) \| *(R?) *\|", re.MULTILINE)
READ = {"kind": "NdJson", "schema": ["id BIGINT"]}


def model() -> Iterator[type]:
    """Iterate over all types that a manifest may contain."""
    waiting: list[type] = [DatasetSnapshot, MetadataBlock]
    seen: set[type] = set()
    while waiting:
        cls = waiting.pop()
        if cls not in seen and cls is not ExtraAttributes:
            seen.add(cls)
            yield cls
            for field in fields_of(cls):
                waiting += held(field.shape)


def held(shape: Shape) -> list[type]:
    match shape:
        case OneOf(members=members):
            return list(members)
        case TableShape(of=of):
            return [of]
        case Vector(of=of):
            return held(of)
        case _:
            return []


MODEL = sorted(model(), key=lambda cls: cls.__name__)
DATA_TYPES = [cls for cls in MODEL if cls.__name__.startswith("DataType")]


@pytest.mark.parametrize("cls", [cls for cls in MODEL if cls not in DATA_TYPES], ids=lambda cls: cls.__name__)
def test_every_field_is_documented_and_marked_if_required(cls: type) -> None:
    tag = tag_of(cls, union_with(cls))
    section = SECTIONS[cls.__name__ if tag == cls.__name__ else f"{tag} ({cls.__name__})"]

    found = {
        name: mark == "R" for names, mark in ROW.findall(section) for name in re.findall(r"`(\w+)`", names)
    }

    assert found == {camel(field.name): not field.is_optional for field in fields_of(cls)}


@pytest.mark.parametrize("cls", DATA_TYPES, ids=lambda cls: cls.__name__)
def test_every_data_type_is_documented(cls: type) -> None:
    tag = tag_of(cls, union_with(cls))
    row = next(
        line
        for line in SECTIONS["Data types"].splitlines()
        if line.startswith("|") and f"`{tag}`" in line.split(" | ")[0]
    )
    assert [
        name for name in map(camel, (field.name for field in fields_of(cls))) if f"`{name}`" not in row
    ] == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.splitlines()[0][:40])
def test_every_example_is_read(example: str) -> None:
    text = example.encode()
    for document in documents(text, "example"):
        plain = document.value
        match plain.get("kind"):
            case "DatasetSnapshot":
                assert snapshots_from_text(text, "example")
            case "MetadataBlock":
                block_from_text(text, "example")
            case str():
                event_from_text(text, "example")
            case _ if plain.keys() & {"fetch", "prepare"}:
                base = {"kind": "SetPollingSource", "fetch": {"kind": "Url", "url": "x"}, "read": READ}
                from_plain(SetPollingSource, {**base, "merge": "Append", **plain})
            case _ if "transform" in plain:
                from_plain(SetTransform, {"kind": "SetTransform", "inputs": [], **plain})
            case _:
                base = {"kind": "AddPushSource", "sourceName": "default", "read": READ, "merge": "Append"}
                from_plain(AddPushSource, {**base, **plain})


@pytest.mark.parametrize("example", OTHERS, ids=range(len(OTHERS)))
def test_every_manifest_of_the_guide_is_valid(example: str) -> None:
    text = example.encode()
    if example.startswith("$schema:"):
        assert manifests_of(written_resources(text), Types())
    else:
        assert snapshots_from_text(text, "example")


def test_the_snapshots_can_be_added(tmp_path: Path) -> None:
    node = Coordinator(home=tmp_path)

    added = node.add(*(example for example in EXAMPLES if example.startswith("kind: DatasetSnapshot")))

    assert [one.alias for one in added] == ["orders", "orders.large"]


@pytest.mark.parametrize(
    "example", [one for one in EXAMPLES if one.startswith("read:")], ids=lambda one: one[:40]
)
def test_every_read_step_can_be_added_to_a_root(example: str, tmp_path: Path) -> None:
    source = {"kind": "AddPushSource", "sourceName": "default", "merge": "Append"}
    (document,) = documents(example.encode(), "example")
    event = from_plain(AddPushSource, {**source, **document.value})
    assert isinstance(event.read.schema, DataSchema) or event.read.schema is None
    indented = "".join(f"      {line}\n" for line in example.splitlines())
    manifest = (
        "kind: DatasetSnapshot\nversion: 1\ncontent:\n  name: example\n  kind: Root\n  metadata:\n"
        f"    - kind: AddPushSource\n      sourceName: default\n{indented}      merge: Append\n"
    )

    (added,) = Coordinator(home=tmp_path).add(manifest)

    assert added.outcome == "added"


def test_the_polling_source_can_be_added(tmp_path: Path) -> None:
    example = next(one for one in EXAMPLES if one.startswith("kind: SetPollingSource"))
    indented = "".join(f"      {line}\n" for line in example.splitlines()).replace(
        "      kind", "    - kind", 1
    )
    manifest = (
        f"kind: DatasetSnapshot\nversion: 1\ncontent:\n  name: example\n  kind: Root\n  metadata:\n{indented}"
    )

    (added,) = Coordinator(home=tmp_path).add(manifest)

    assert added.outcome == "added"
