"""Types of resources that are registered by their schemas: checked, stored, applied, labelled, deleted."""

import time
from typing import Any

import pytest

from odf_common.adapters.system_clock import SYSTEM_CLOCK
from odf_common.errors import InvalidInput
from odf_common.resources.registry import CORE_TYPES, FLOW
from odf_common.resources.resource_manifests import InvalidManifests, Problem, written_resources
from odf_common.resources.secret_keys import SecretKeys
from odf_common.service.reconcile_loop import REGISTERED
from odf_coordinator.resources.apply import Forbidden
from odf_coordinator.resources.attempts import Attempts
from odf_coordinator.resources.callers import Subject
from odf_coordinator.resources.changes import Outcome
from odf_coordinator.resources.controllers import LocalStore, PlainResources
from odf_coordinator.resources.documents import type_id
from odf_coordinator.resources.pre_apply import PreApply
from odf_coordinator.resources.registered_types import InvalidSchema
from odf_coordinator.resources.sql_store import SqlResourceStore
from odf_coordinator.resources.use_cases import Batch, ResourceRef, Resources
from odf_coordinator.resources.watch import Watch

BASE = "https://example.com/schemas"
THERMOMETER = f"{BASE}/home/v1/Thermometer"
ROOM = f"{BASE}/home/v1/Room"
KEYS = SecretKeys.new()


def a_type(uri: str = THERMOMETER, spec: Any = None, **more: Any) -> dict[str, Any]:
    spec = spec or {
        "type": "object",
        "required": ["unit"],
        "properties": {
            "unit": {"enum": ["C", "F"]},
            "limits": {"type": "array", "items": {"type": "number"}},
        },
        "additionalProperties": False,
    }
    properties = {"$schema": {"const": uri}, "headers": {"type": "object"}, "spec": spec}
    return {"$id": uri, "description": "A thermometer.", "properties": properties, **more}


@pytest.fixture
def resources() -> Resources:
    return open_resources(SqlResourceStore.open(None))


def open_resources(store: SqlResourceStore) -> Resources:
    controlled = frozenset(str(kind.uri) for kind in CORE_TYPES)
    return Resources(
        store=store,
        clock=SYSTEM_CLOCK,
        pre_apply=lambda: PreApply(load_keys=lambda: KEYS),
        controlled=controlled,
    )


def add(resources: Resources, *documents: Any) -> list[str]:
    return [one.short_name for one in resources.add_types(Subject(), documents)]


def apply(resources: Resources, text: str) -> tuple[Outcome, ...]:
    return resources.apply(Subject(), Batch(written=written_resources(text.encode())))


def problems_of(resources: Resources, text: str) -> tuple[Problem, ...]:
    with pytest.raises(InvalidManifests) as refused:
        apply(resources, text)
    return refused.value.problems


MANIFEST = f"""
$schema: {THERMOMETER}
headers: {{name: kitchen, labels: {{floor: 1}}}}
spec: {{unit: C}}
"""


@pytest.mark.parametrize("schema", [THERMOMETER, "Thermometer", "thermometer"])
def test_resources_of_a_registered_type_are_stored_with_its_uri(resources: Resources, schema: str) -> None:
    assert add(resources, a_type()) == ["Thermometer"]
    (outcome,) = apply(resources, MANIFEST.replace(THERMOMETER, schema))
    assert (outcome.outcome, outcome.resource.document["$schema"]) == ("created", THERMOMETER)
    found = resources.get(Subject(), ResourceRef(type="Thermometer", ref="kitchen"))
    assert found.document["spec"] == {"unit": "C"}
    (same,) = apply(resources, MANIFEST)
    assert same.outcome == "unchanged"


def test_every_error_of_a_spec_has_its_path_and_line(resources: Resources) -> None:
    add(resources, a_type())
    text = "$schema: Thermometer\nheaders: {name: x}\nspec:\n  unit: K\n  limits: [1, two]\n  more: 1\n"
    found = {(one.path, one.line, one.code) for one in problems_of(resources, text)}
    assert found == {
        ("spec.unit", 4, "SchemaViolation"),
        ("spec.limits[1]", 5, "SchemaViolation"),
        ("spec", 3, "SchemaViolation"),
    }


def test_types_outlive_the_process_and_are_read_once() -> None:
    store = SqlResourceStore.open(None)
    add(open_resources(store), a_type())
    resources = open_resources(store)
    assert resources.types() is resources.types()
    assert str(resources.types().of_schema("Thermometer").uri) == THERMOMETER


def test_versions_of_a_type_are_side_by_side_and_share_names(resources: Resources) -> None:
    newer = f"{BASE}/home/v2/Thermometer"
    add(resources, a_type())
    apply(resources, MANIFEST)
    add(resources, a_type(newer, {"type": "object", "required": ["scale"]}))
    assert problems_of(resources, MANIFEST.replace(THERMOMETER, newer))[0].path == "spec"
    (outcome,) = apply(resources, MANIFEST.replace(THERMOMETER, newer).replace("unit: C", "scale: C"))
    assert outcome.outcome == "updated"
    assert outcome.resource.document["$schema"] == newer


def test_types_of_one_batch_may_refer_to_each_other_and_to_the_specification(resources: Resources) -> None:
    part = {"$id": f"{BASE}/home/v1/Unit", "enum": ["C"]}
    spec = {
        "properties": {
            "unit": {"$ref": f"{BASE}/home/v1/Unit"},
            "owner": {"$ref": "https://opendatafabric.org/schemas/auth/v1alpha1/AccountRef"},
        }
    }
    add(resources, a_type(spec=spec), part)
    apply(resources, MANIFEST)
    problems = problems_of(resources, MANIFEST.replace("unit: C", "unit: F, owner: {name: 1}"))
    assert {problem.path for problem in problems} == {"spec.unit", "spec.owner"}


def test_labels_are_checked_by_the_schema_of_their_key(resources: Resources) -> None:
    add(resources, a_type(), {"$id": ROOM, "type": "object", "required": ["floor"]})
    labelled = MANIFEST.replace("floor: 1", f"'{ROOM}': {{door: 1}}")
    (problem,) = problems_of(resources, labelled)
    assert (problem.path, problem.code) == (f"headers.labels.{ROOM}", "SchemaViolation")
    apply(resources, labelled.replace("door", "floor"))


def test_a_short_name_belongs_to_one_type(resources: Resources) -> None:
    with pytest.raises(InvalidSchema, match="the short name Dataset belongs to"):
        add(resources, a_type(f"{BASE}/home/v1/Dataset"))
    assert add(resources, a_type(f"{BASE}/home/v1/Dataset", shortName="HomeDataset")) == ["HomeDataset"]
    with pytest.raises(InvalidSchema, match="the short name homedataset belongs to"):
        add(resources, a_type(shortName="homedataset"))


def test_only_administrators_register_types(resources: Resources) -> None:
    with pytest.raises(Forbidden):
        resources.add_types(Subject(name="bob", is_admin=False), [a_type()])


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"properties": {"a": schema}}
    return schema


def doubling(levels: int) -> dict[str, Any]:
    """Return a schema of which each level applies the next one twice to the same value."""
    defs: dict[str, Any] = {
        f"d{n}": {"allOf": [{"$ref": f"{THERMOMETER}#/$defs/d{n + 1}"}] * 2} for n in range(levels)
    }
    return {"$defs": {**defs, f"d{levels}": {"type": "string"}}}


@pytest.mark.parametrize(
    ("documents", "text"),
    [
        ([], "expected 1 to 100 schemas, got 0"),
        (["x"], "expected a JSON Schema"),
        ([{}], "is not the URI of a type"),
        ([a_type("https://opendatafabric.org/schemas/home/v1/X")], "belong to the node"),
        ([a_type("https://node.odf.example/schemas/home/v1/X")], "belong to the node"),
        ([a_type(), a_type()], "two schemas of the batch have the same"),
        ([a_type(**{"$schema": "http://json-schema.org/draft-07/schema#"})], "expected the dialect"),
        ([a_type(spec={"type": "strong"})], "strong"),
        ([a_type(spec=deep(100))], "nested more than 64"),
        ([a_type(spec={"$ref": "https://example.org/x"})], "schemas are not fetched"),
        ([a_type(spec={"$ref": "http://127.0.0.1:1/x"})], "schemas are not fetched"),
        ([a_type(spec={"$ref": "file:///etc/passwd"})], "schemas are not fetched"),
        ([a_type(spec={"$ref": "#/$defs/nope"})], "nope"),
        ([a_type(spec={"$ref": f"{THERMOMETER}#/properties/spec"})], "refers to itself for the same value"),
        ([a_type(spec={"anyOf": [{"not": {"$ref": "#/properties/spec"}}]})], "refers to itself"),
        ([a_type(spec={"$ref": "#/$defs/d0"}, **doubling(30))], "more than 10000 schemas"),
        ([a_type(spec={"pattern": "((a{1000}){1000}){1000}"})], "pattern|regex"),
        ([a_type(spec={"pattern": "("})], "pattern|regex"),
        ([{"$id": THERMOMETER, "properties": {"$schema": {}, "headers": {}}}], "has the property `spec`"),
    ],
)
def test_hostile_and_wrong_schemas_are_refused_at_once(
    resources: Resources, documents: list[Any], text: str
) -> None:
    began = time.monotonic()
    with pytest.raises(InvalidInput, match=text):
        resources.add_types(Subject(), documents)
    assert time.monotonic() - began < 5
    assert [*resources.types()] == [*CORE_TYPES]


def test_patterns_are_matched_in_linear_time(resources: Resources) -> None:
    add(resources, a_type(spec={"properties": {"unit": {"pattern": "^(a+)+$"}}}))
    began = time.monotonic()
    problems_of(resources, MANIFEST.replace("unit: C", f"unit: {'a' * 5000}b"))
    assert time.monotonic() - began < 5


def test_a_schema_of_trees_is_possible(resources: Resources) -> None:
    tree = {"properties": {"child": {"$ref": "#/properties/spec"}, "unit": {"type": "string"}}}
    add(resources, a_type(spec=tree))
    problems = problems_of(resources, MANIFEST.replace("unit: C", "child: {child: {unit: 1}}"))
    assert [problem.path for problem in problems] == ["spec.child.child.unit"]


@pytest.fixture
def watched(resources: Resources) -> LocalStore:
    watch = Watch(resources.store)
    resources.changed.append(watch.notify)
    attempts = Attempts(store=resources.store, clock=SYSTEM_CLOCK, changed=watch.notify)
    return LocalStore(resources.store, attempts, watch, resources.types)


def test_resources_of_types_that_are_registered_later_are_due(
    resources: Resources, watched: LocalStore
) -> None:
    due = watched.due_ids([REGISTERED], lambda: True)
    add(resources, a_type())
    (outcome,) = apply(resources, MANIFEST)
    assert next(due) == outcome.resource.id
    assert PlainResources().reconcile({}) == {}


def test_a_request_makes_a_resource_due_for_the_controllers_of_its_type(resources: Resources) -> None:
    watch = Watch(resources.store)
    (outcome,) = apply(resources, "{$schema: VariableSet, headers: {name: env}, spec: {variables: {}}}")
    resource = outcome.resource
    due = watch.due_ids((resource.type,), lambda: True)
    others = watch.due_ids((type_id(FLOW.uri),), lambda: True)
    assert next(due) == resource.id  # it is new
    assert next(others) is None
    watch.request(resource)
    assert next(one for one in due if one is not None) == resource.id
    assert next(others) is None
