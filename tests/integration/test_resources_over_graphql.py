"""GraphQL applies, reads and changes resources as REST does, and refuses queries that cost too much."""

import json
from collections.abc import Callable
from typing import Any
from urllib.request import Request, urlopen

import pytest
from odf_testing.embedded import EmbeddedNode

Ask = Callable[..., dict[str, Any]]
MANIFEST = (
    "{$schema: VariableSet, headers: {name: Graph, labels: {env: 'prøve'}}, spec: {variables: {a: '1'}}}"
)
APPLY = """
mutation ($yaml: String, $dry: Boolean! = false) { resources { apply(yaml: $yaml, dryRun: $dry) {
  ... on Applied { results }
  ... on Refusal { code message problems }
} } }"""
CHANGED = "... on ResourceDocument { resource etag } ... on Refusal { code message }"
REF = 'ref: {type: "VariableSet", ref: "graph"}'


@pytest.fixture
def ask(node: EmbeddedNode) -> Ask:
    def send(query: str, **variables: Any) -> dict[str, Any]:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = Request(f"{node.node.http}/graphql", body, {"Content-Type": "application/json"})
        with urlopen(request, timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    return send


def operation(answer: dict[str, Any]) -> dict[str, Any]:
    assert "errors" not in answer, answer["errors"]
    ((_, result),) = answer["data"]["resources"].items()
    found: dict[str, Any] = result
    return found


def test_a_resource_is_applied_read_changed_renamed_and_deleted(ask: Ask) -> None:
    planned = operation(ask(APPLY, yaml=MANIFEST, dry=True))
    assert [one["id"] for one in planned["results"]] == ["(new)"]
    (created,) = operation(ask(APPLY, yaml=MANIFEST))["results"]
    assert created["outcome"] == "created"
    labels = json.dumps({"env": "prøve"}, ensure_ascii=False)
    page = operation(
        ask(
            'query ($l: JSON) { resources { list(type: "VariableSet", labels: $l) { items nextCursor } } }',
            l=json.loads(labels),
        )
    )
    assert [item["headers"]["id"] for item in page["items"]] == [created["id"]]
    patched = operation(
        ask(
            f"mutation ($p: JSON!) {{ resources {{ patch({REF}, patch: $p) {{ {CHANGED} }} }} }}",
            p={"spec": {"variables": {"b": "2"}}},
        )
    )
    assert patched["resource"]["spec"] == {"variables": {"a": "1", "b": "2"}}
    stale = operation(
        ask(
            f'mutation {{ resources {{ rename({REF}, newName: "other", etag: "\\"1.1\\"") {{ {CHANGED} }} }} }}'
        )
    )
    assert stale["code"] == "PreconditionFailed"
    renamed = operation(
        ask(f'mutation {{ resources {{ rename({REF}, newName: "Other") {{ {CHANGED} }} }} }}')
    )
    assert renamed["resource"]["headers"]["name"] == "Other"
    by_id = f'ref: {{type: "VariableSet", ref: "{created["id"]}"}}'
    deleted = operation(ask(f"mutation {{ resources {{ delete({by_id}) {{ {CHANGED} }} }} }}"))
    assert "deletedAt" in deleted["resource"]["headers"]
    gone = ask(f"query {{ resources {{ get({by_id}) {{ etag }} }} }}")
    assert gone == {"data": {"resources": {"get": None}}}


def test_a_refused_batch_has_every_error_with_its_place(ask: Ask) -> None:
    refused = operation(ask(APPLY, yaml=MANIFEST.replace("Graph", "a_b").replace("'1'", "1")))
    assert [problem["path"] for problem in refused["problems"]] == ["headers.name", "spec.variables.a"]


@pytest.mark.parametrize(
    "query",
    [
        "query { " + " ".join(f"a{n}: resources {{ types {{ about }} }}" for n in range(40)) + " }",
        "query { resources { types { about " + "schema " * 3000 + "} } }",
        "query { resources { unknown } }",
    ],
)
def test_a_query_that_costs_too_much_or_has_no_meaning_is_refused(ask: Ask, query: str) -> None:
    answer = ask(query)
    assert answer["data"] is None
    assert answer["errors"]


def test_the_schema_is_published(node: EmbeddedNode) -> None:
    with urlopen(f"{node.node.http}/graphql/schema", timeout=30) as answer:
        assert "type ResourceMutations" in answer.read().decode()
