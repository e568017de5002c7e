"""Each field of each type can be explained, by a path through lists, maps and kinds."""

import pytest

from odf_common.errors import InvalidInput
from odf_common.resources.explanation import FieldExplanation, explain_field, explain_part
from odf_common.resources.registry import CORE_TYPES, SOURCE, ResourceType
from odf_common.resources.resource_schemas import resource_schemas

MAX_DEPTH = 6  # types of columns contain types


def explain(path: str) -> FieldExplanation:
    name, *keys = path.split(".")
    uri = next(str(kind.uri) for kind in CORE_TYPES if kind.short_name == name)
    return explain_field(resource_schemas(), uri, keys)


@pytest.mark.parametrize("kind", CORE_TYPES, ids=lambda kind: kind.short_name)
def test_each_field_can_be_explained(kind: ResourceType) -> None:
    waiting = [[field.name] for field in explain(kind.short_name).fields]
    while waiting:
        path = waiting.pop()
        found = explain_field(resource_schemas(), str(kind.uri), path)
        assert found.about
        if len(path) < MAX_DEPTH:
            waiting += [[*path, field.name] for field in found.fields]


@pytest.mark.parametrize(
    ("path", "facts"),
    [
        ("Source.spec.read.header", ("boolean", False, False, (), ("Csv",))),
        ("Source.spec.ingress.Url.url", ("string", True, None, (), ())),
        ("Source.spec.ingress.headers.name", ("string", True, None, (), ())),
        ("Source.spec.ingress.buffer.bufferSize", ("uint64", False, 10_000, (), ())),
        ("Account.spec.accountType", ("string", False, "User", ("User", "Organization"), ())),
        ("Flow.spec.triggers.cron", ("cron", False, None, (), ("Schedule",))),
        ("SecretSet.spec.secrets.value", ("string", True, None, (), ())),
        ("Dataset.status.phase", ("string", True, None, ("Pending", "Reconciling", "Ready", "Failed"), ())),
        ("PersistentVolume.spec.kind", ("string", True, None, ("S3", "Ext"), ())),
    ],
)
def test_facts_of_a_field(path: str, facts: tuple[object, ...]) -> None:
    found = explain(path)
    assert found.name == path
    assert (found.type, found.is_required, found.default, found.choices, found.kinds) == facts


def test_kinds_of_this_node_are_found_by_the_name_of_their_schema() -> None:
    fields = {field.name: field for field in explain("Source.spec.ingress.KafkaTopic").fields}
    assert fields["$schema"].choices == ("https://node.odf.example/schemas/source/v1alpha1/KafkaTopic",)
    assert fields["kind"].choices == ("Ext",)


@pytest.mark.parametrize(
    "path", ["Source.spec.read.Csv.nope", "Source.spec.config.x.y", "Account.spec.email.x"]
)
def test_a_field_that_does_not_exist_is_refused(path: str) -> None:
    with pytest.raises(InvalidInput, match="has no field"):
        explain(path)


def test_a_part_has_one_explanation_for_each_kind() -> None:
    parts = explain_part(resource_schemas(), f"{str(SOURCE.uri).removesuffix('Source')}MergeStrategy")
    assert [part.name for part in parts] == [
        "Append",
        "Ledger",
        "Snapshot",
        "ChangelogStream",
        "UpsertStream",
    ]
