"""Manifests of resources: valid ones, and every error of every document."""

import pytest

from odf_common.resources.registry import Types
from odf_common.resources.resource_manifests import (
    EmptyBatch,
    InvalidManifests,
    Problem,
    manifests_of,
    written_batch,
    written_resources,
)

FIVE = b"""\
$schema: https://opendatafabric.org/schemas/config/v1alpha1/Nope
headers: {name: x}
spec: {}
---
$schema: https://opendatafabric.org/schemas/config/v1alpha1/VariableSet
headers: {name: x}
spec: {variables: {}}
status: {phase: Ready}
---
$schema: VariableSet
headers: {name: a_b}
spec: {variables: {}}
---
$schema: VariableSet
headers: {name: x}
spec:
  variables: {}
  other: {deep: 1}
---
$schema: Flow
headers: {name: f}
spec:
  target: Dataset:%
  triggers:
    - {kind: Cron, cron: "* * * * *"}
  tasks: []
---
$schema: VariableSet
headers: {name: good}
spec: {variables: {a: "1"}}
"""


def problems_of(text: bytes, file: str | None = None) -> tuple[Problem, ...]:
    with pytest.raises(InvalidManifests) as refused:
        manifests_of(written_resources(text, file), Types())
    return refused.value.problems


def test_every_error_of_every_document_is_told_with_its_place() -> None:
    found = [(one.document, one.line, one.path, one.code, one.hint) for one in problems_of(FIVE, "five.yaml")]
    types = "choose from " + ", ".join(kind.short_name for kind in Types())
    assert found == [
        (1, 1, "$schema", "UnknownType", types),
        (2, 8, "status", "SystemField", "remove it; `--view input` prints a resource without such fields"),
        (3, 11, "headers.name", "InvalidName", ""),
        (4, 18, "spec.other", "SchemaViolation", ""),
        (5, 25, "spec.triggers[0].kind", "SchemaViolation", "Schedule"),
    ]


def test_two_errors_of_one_document_are_both_told() -> None:
    text = b'{"$schema": "Account", "headers": {"name": 1, "generation": 2}, "spec": {"accountType": "user"}}'
    assert [(one.path, one.code) for one in problems_of(text)] == [
        ("headers.generation", "SystemField"),
        ("headers.name", "SchemaViolation"),
        ("spec.accountType", "SchemaViolation"),
        ("spec", "SchemaViolation"),
    ]


def test_a_list_of_manifests_is_a_batch() -> None:
    text = b'{"items": [{"$schema": "VariableSet", "headers": {"name": "a"}, "spec": {"variables": {"x": "1"}}}]}'
    (manifest,) = manifests_of(written_resources(text), Types())
    assert (manifest.type.short_name, manifest.name.text, manifest.spec) == (
        "VariableSet",
        "a",
        {"variables": {"x": "1"}},
    )


def test_text_that_is_no_yaml_names_its_line() -> None:
    (problem,) = problems_of(b"a: [1,\nb: }", "x.yaml")
    assert (problem.code, problem.file, problem.line) == ("InvalidYaml", "x.yaml", 2)


def test_an_unknown_version_names_those_that_are_served() -> None:
    uri = "https://opendatafabric.org/schemas/config/v2/VariableSet"
    (problem,) = problems_of(f"$schema: {uri}\nheaders: {{name: x}}\nspec: {{variables: {{}}}}".encode())
    assert problem.code == "UnsupportedVersion"
    assert problem.hint == "https://opendatafabric.org/schemas/config/v1alpha1/VariableSet"


@pytest.mark.parametrize("value", ["1", "true", "[x]", "{value: 1}", "{value: a, other: b}"])
def test_a_variable_that_is_no_string_is_refused(value: str) -> None:
    text = f"$schema: VariableSet\nheaders: {{name: x}}\nspec: {{variables: {{a: {value}}}}}"
    (problem,) = problems_of(text.encode())
    assert problem.path.removeprefix("spec.variables.a") in {"", ".value", ".other"}


def test_a_secret_shows_no_value_in_its_repr() -> None:
    kind = Types().of_schema("SecretSet")
    spec = kind.read_spec({"secrets": {"pw": "swordfish"}}, [])
    assert "swordfish" not in repr(spec)


def test_system_made_types_are_refused() -> None:
    (problem,) = problems_of(b"$schema: Task\nheaders: {name: x}\nspec: {kind: GarbageCollection}")
    assert problem.code == "SystemField"


@pytest.mark.parametrize(
    ("trigger", "path", "text"),
    [
        ("{kind: Schedule, cron: 0 0 L * *}", "cron", "cannot read the day of the month"),
        ("{kind: Schedule, cron: '@reboot'}", "cron", "no start of a machine"),
        ("{kind: Dataset, dataset: '%', events: [dataset.ref.changed]}", "events[0]", "did you mean"),
        ("{kind: Event, events: {$nor: []}}", "events.$nor", "unknown operator"),
        ("{kind: Source, source: s, maxAwaitInterval: 10}", "maxAwaitInterval", "expected a string"),
    ],
)
def test_values_of_triggers_have_their_own_grammars(trigger: str, path: str, text: str) -> None:
    (problem,) = problems_of(
        b"$schema: Flow\nheaders: {name: f}\nspec: {target: 'Dataset:%', tasks: [], triggers: ["
        + trigger.encode()
        + b"]}\n"
    )
    assert problem.path == f"spec.triggers[0].{path}"
    assert text in problem.message


def value_of(text: bytes) -> object:
    (written,) = written_resources(text)
    return written.plain


def test_integers_may_have_underscores_unless_they_are_quoted() -> None:
    written = b"{n: 10_000, minus: -1_0, text: '10_000', name: a_1, float: 1_0.5, ends: 1_}"
    assert value_of(written) == {
        "n": 10_000,
        "minus": -10,
        "text": "10_000",
        "name": "a_1",
        "float": "1_0.5",
        "ends": "1_",
    }


def test_an_alias_stands_for_the_value_of_its_anchor() -> None:
    plain = value_of(b"spec: &s {a: &t [1, x]}\nother: *s\nthird: *t")
    assert plain == {"spec": {"a": [1, "x"]}, "other": {"a": [1, "x"]}, "third": [1, "x"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a: *x", "no value before has the anchor &x"),
        (b"a: &x [*x]", "no value before has the anchor &x"),
        (b"a: &x 1\n---\nb: *x", "no value before has the anchor &x"),
        (
            b"a: &a " + b"[" * 150 + b"]" * 150 + b"\nb: " + b"[" * 60 + b"*a" + b"]" * 60,
            "nested deeper than 200",
        ),
        (b"? &x a\n: 1", "a key has to be a plain string"),
        (
            b"a: &a ["
            + b"x, " * 1000
            + b"]\n"
            + b"".join(b"b%d: &b%d [*a, *a]\n" % (n, n) for n in range(200)),
            "aliases stand for more than 1000000 characters",
        ),
    ],
)
def test_aliases_that_mean_nothing_or_too_much_are_refused(text: bytes, message: str) -> None:
    with pytest.raises(InvalidManifests) as refused:
        written_resources(text)
    (problem,) = refused.value.problems
    assert (problem.code, problem.message) == ("InvalidYaml", message)


@pytest.mark.parametrize("text", [b"", b"# nothing yet\n", b"---\n---\n", b"[]", b'{"items": []}'])
def test_files_without_a_manifest_are_refused_by_name(text: bytes) -> None:
    with pytest.raises(EmptyBatch, match=r"^vars\.yaml: there is no manifest$"):
        written_batch([("vars.yaml", text)])
    with pytest.raises(EmptyBatch, match=r"^there is no manifest$"):
        written_batch([("", text)])


def test_an_empty_file_next_to_others_is_no_error() -> None:
    assert len(written_batch([("a.yaml", b"# later"), ("b.yaml", b"$schema: VariableSet")])) == 1
