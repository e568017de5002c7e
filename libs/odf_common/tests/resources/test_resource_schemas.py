"""Schemas of resources: valid, complete, with a sentence for each field."""

import json
import re
from collections.abc import Iterator
from dataclasses import fields

import pytest
from jsonschema import Draft202012Validator

from odf_common.codec.json_schema import Schema, schema_text
from odf_common.codec.plain_values import camel
from odf_common.resources.conditions import StatusCondition
from odf_common.resources.field_descriptions import FIELD_DESCRIPTIONS
from odf_common.resources.registry import CORE_TYPES
from odf_common.resources.resource_schemas import resource_schemas, schemas_by_name
from odf_common.resources.scalar_formats import CORE_BASE, TypeUri

SCHEMAS = resource_schemas()


def short(uri: str) -> str:
    return uri.rsplit("/schemas/", maxsplit=1)[-1]


def objects(schema: Schema) -> Iterator[Schema]:
    if isinstance(schema, dict):
        if "properties" in schema:
            yield schema
        for value in schema.values():
            yield from objects(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from objects(value)


@pytest.mark.parametrize("uri", SCHEMAS, ids=short)
def test_a_schema_is_valid_and_closed_and_describes_each_field(uri: str) -> None:
    schema = SCHEMAS[uri]
    Draft202012Validator.check_schema(schema)
    assert (schema["$id"], bool(schema["description"])) == (uri, True)
    assert set(re.findall(r'"\$ref": "(https:[^"]+)"', json.dumps(schema))) <= SCHEMAS.keys()
    for closed in objects(schema):
        assert closed["additionalProperties"] is False
        for value in closed["properties"].values():
            assert value["description"].endswith(".")


def test_each_type_has_three_documents() -> None:
    for kind in CORE_TYPES:
        assert {str(kind.uri), f"{kind.uri}Spec", f"{kind.uri}SpecInput"} <= SCHEMAS.keys()
        assert SCHEMAS[f"{kind.uri}SpecInput"]["canonicalType"] == f"{kind.uri}Spec"


def test_every_id_is_the_uri_of_a_type_or_of_the_former_version() -> None:
    for uri in SCHEMAS:
        assert uri.startswith(f"{CORE_BASE}/legacy/v0/") or str(TypeUri.parse(uri)) == uri


def test_each_schema_has_a_name_of_its_own() -> None:
    assert len(schemas_by_name()) == len(SCHEMAS)
    assert schemas_by_name()["dataset/v1alpha1/Dataset"] is SCHEMAS[f"{CORE_BASE}/dataset/v1alpha1/Dataset"]


def test_every_description_belongs_to_a_field() -> None:
    used = {
        text for uri in SCHEMAS for text in re.findall(r'"description": "([^"]+)"', schema_text(SCHEMAS[uri]))
    }
    unused = [
        (name, key)
        for name, described in FIELD_DESCRIPTIONS.items()
        for key, text in described.items()
        if text not in used
    ]
    assert unused == []


def test_conditions_have_the_fields_of_the_model() -> None:
    conditions = SCHEMAS[f"{CORE_BASE}/resource/v1alpha1/ReconciliationError"]
    assert [*conditions["properties"]] == [camel(field.name) for field in fields(StatusCondition)]
