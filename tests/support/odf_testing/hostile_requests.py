"""Requests of any kind to all operations of an OpenAPI description; the dataset is the vector `cities.population`."""

import json
from collections.abc import Mapping
from typing import Any, Final

import schemathesis
from hypothesis import given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from odf_testing.profiles import examples

DATASET: Final = "did:odf:fed0126cf085a18635f5d066ab74bb0284a35a86393fa950d8a91b48f88e4b6408100"
HEAD: Final = "f16205b32358ba1169824af9f5f71d362beb5f58932cfca42013f210e16672a94399f"
VALUES: Final = (
    *(
        "ann",
        "cities.population",
        "head",
        HEAD,
        DATASET,
        "f1620" + "0" * 64,
        "-",
        "..",
        "%",
        "a/b",
        "\0",
        "\n",
    ),
    *(
        "ö",
        "💥",
        "' OR 1=1 --",
        "<script>",
        "{name}",
        "z" * 3000,
        "did:odf:",
        "1",
        "commit",
        "true",
        "🏙" * 50,
    ),
)
BODIES: Final = (
    *(b"", b"{}", b"[" * 5000, b"\xff\xfe", b"null", b"a=b&c", b"client_id=kamu", b"x" * 70_000),
    json.dumps(
        {"loginMethod": "password", "loginCredentialsJson": '{"login": "ann", "password": "x"}'}
    ).encode(),
    b'{"$schema": "VariableSet", "headers": {"name": "head"}, "spec": {"variables": {"b": "2"}}}',
    b'[{"$schema": "SecretSet", "headers": {"name": "keys"}, "spec": {"secrets": {"a": "b"}}}, 1]',
    b'{"spec": {"variables": {"a": null}}}',
)
TYPES: Final = (
    "application/json",
    "application/yaml",
    "application/x-www-form-urlencoded",
    "text/csv",
    "a",
    "\xff/x;charset=no",
)
TRIES: Final = 10  # of each operation
OWN: Final = {
    "account": "ann",
    "dataset": "cities.population",
    "ref": "head",
    "context": "config",
    "version": "v1alpha1",
    "type": "variableset",
}
HEADERS: Final = {
    "Content-Type": TYPES,
    "Range": ("bytes=0-", "bytes=9-1", "x"),
    "If-Match": ("*", '"1.1"', "x"),
    "Accept": ("application/yaml", "*/*"),
}
SOMETIMES: Final = st.sampled_from([True, False, False])
CHECKS: Final = [status_code_conformance]
NOT_IMPLEMENTED: Final = 501  # a whole endpoint, which the description says: the server has no fault
CHECKS_OF_CONTENT: Final = [content_type_conformance, response_schema_conformance]


@schemathesis.serializer("application/x-ndjson")
def _as_it_is(_: schemathesis.SerializationContext, body: Any) -> Any:
    return body


def try_all(url: str, token: str, description: Mapping[str, Any]) -> None:
    """Try every operation, with this token among others; fails if an answer is not one that the description names."""
    for found in schemathesis.openapi.from_dict(dict(description)).get_all_operations():
        assert isinstance(found, Ok)
        _try(url, token, found.ok())


def _try(url: str, token: str, operation: schemathesis.APIOperation[Any, Any, Any, Any]) -> None:
    bodies = st.sampled_from(BODIES)

    @settings(max_examples=examples(TRIES))
    @given(case=operation.as_strategy(), data=st.data())
    def try_request(case: schemathesis.Case[Any], data: st.DataObject) -> None:
        case.path_parameters = data.draw(_paths(case.path_parameters))
        token_sent = data.draw(st.sampled_from([token, token, token, "x", None]))
        headers = {"Authorization": f"Bearer {token_sent}"} if token_sent else {}
        headers |= {
            name: data.draw(st.sampled_from(values))
            for name, values in HEADERS.items()
            if data.draw(SOMETIMES)
        }
        has_body = operation.method in {"post", "put", "patch"} and data.draw(SOMETIMES)
        body: dict[str, Any] = {"data": data.draw(bodies)} if has_body else {}
        answer = case.call(url, headers=headers, timeout=30, **body)
        # A refusal of the other implementation has no body, which a description cannot express.
        checks = CHECKS + (CHECKS_OF_CONTENT if answer.content else [])
        checks += [] if answer.status_code == NOT_IMPLEMENTED else [not_a_server_error]
        case.validate_response(answer, checks=checks)
        assert b"Traceback" not in answer.content

    try_request()


@st.composite
def _paths(draw: st.DrawFn, generated: dict[str, Any]) -> dict[str, Any]:
    """Values of a path: most get past the check that the dataset exists."""
    values = st.sampled_from(VALUES)
    own = {name: st.just(OWN[name]) if name in OWN else values for name in generated}
    return {
        name: draw(st.one_of(own[name], own[name], values, st.just(one))) for name, one in generated.items()
    }
