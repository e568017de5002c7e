"""The published JSON Schemas and examples of resources, where this machine has them.

They are data of the specification's repository, which is not copied here: the folder `shared/vectors/resources` is
looked for next to the clone.
"""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from odf_common.codec.json_schema import DIALECT, Schema
from odf_common.codec.yaml_syntax import documents

_FOLDER = Path("shared", "vectors", "resources")
FOLDER = next((place for parent in Path(__file__).parents if (place := parent / _FOLDER).is_dir()), None)
needs_published_schemas = pytest.mark.skipif(
    FOLDER is None, reason=f"the published schemas are not here: no {_FOLDER} next to the clone"
)
_METASCHEMAS = "https://opendatafabric.org/schemas/metaschemas/"


@cache
def published_schemas() -> dict[str, Schema]:
    """Return the published schemas by `$id`; those of their own dialects are read as 2020-12, which they extend."""
    assert FOLDER is not None
    schemas = {}
    for path in sorted(FOLDER.glob("schemas/**/*.json")):
        schema = json.loads(path.read_text("utf-8"))
        if schema["$schema"].startswith(_METASCHEMAS):
            schema["$schema"] = DIALECT
        schemas[schema["$id"]] = schema
    return schemas


def examples() -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each published example."""
    assert FOLDER is not None
    for path in sorted(FOLDER.glob("examples/*/*.yaml")):
        for document in documents(path.read_bytes(), path.name):
            yield f"{path.parent.name}/{path.name}", document.value


def accepts(schemas: dict[str, Schema], uri: str) -> Callable[[Any], bool]:
    """Return whether values are valid by a schema that refers to others of the same set."""
    registry = jsonschema_rs.Registry(list(schemas.items()))
    return jsonschema_rs.Draft202012Validator(schemas[uri], registry=registry).is_valid
