"""The page on types of resources, from the schemas that are derived from the model; `generate.py` writes it."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final

from odf_common.resources.explanation import FieldExplanation, explain_part
from odf_common.resources.registry import CORE_TYPES
from odf_common.resources.resource_schemas import resource_schemas
from odf_common.resources.schema_parts import schema_uri

INTRO: Final = """\
Each type of resource and each of its parts, as manifests have them. `odf explain Source.spec.read` prints the same for
a field, and `odf schema Source` the JSON Schema, which a node serves at `/schemas/source/v1alpha1/Source` for editors.
**R** marks required fields. The metadata events, which a Dataset has in `metadata`, are in [manifests](manifests.md).
Kinds that have a `$schema` are those of this node, and written with `kind: Ext`.
"""
HEADERS: Final = schema_uri("resource", "ResourceHeadersInput")
EVENTS: Final = schema_uri("dataset", "MetadataEvent")
_NAME: Final = re.compile(r"\b[A-Z][A-Za-z]+\b")


def resource_page() -> Iterator[str]:
    """Yield the parts of the page."""
    yield "# Types of resources\n"
    yield INTRO
    specs = {f"{kind.uri}SpecInput": kind for kind in CORE_TYPES}
    parts = {_name(uri): uri for uri in sorted(_parts([HEADERS, *specs]), key=_name) if uri not in specs}
    tables = {name: [*_tables(uri, parts)] for name, uri in parts.items()}
    shown = [name for name in parts if tables[name]]
    for uri, kind in specs.items():
        yield f"## {kind.short_name}\n\n`$schema: {kind.uri}`\n\n{kind.about}\n"
        yield from _tables(uri, shown)
    yield "## Parts\n"
    for name in shown:
        yield f"### {name}\n\n{resource_schemas()[parts[name]]['description']}\n"
        yield from _tables(parts[name], shown)


def _name(uri: str) -> str:
    return str(resource_schemas()[uri].get("canonicalType", uri)).rpartition("/")[2]


def _parts(roots: Iterable[str]) -> set[str]:
    """Return the schemas that others refer to, without those in events and those that a union has in place."""
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        uri = waiting.pop()
        if uri not in found and uri != EVENTS:
            found.add(uri)
            waiting += re.findall(r'"\$ref": "(https://opendata[^"]+)"', json.dumps(resource_schemas()[uri]))
    return found


def _tables(uri: str, parts: Iterable[str]) -> Iterator[str]:
    """Yield the kinds of a part, and a table of the fields of each; nothing for a part without fields."""
    kinds = explain_part(resource_schemas(), uri)
    if len(kinds) > 1 or kinds[0].name != _name(uri):
        rows = [f"| `{one.name}` | {one.about} |" for one in kinds]
        yield "\n".join(["| kind | meaning |", "|---|---|", *rows]) + "\n"
    for one in kinds:
        rows = [_row(field, parts) for field in one.fields if field.choices not in ((one.name,), ("Ext",))]
        if rows:
            if one.name != _name(uri):
                yield f"Fields of `{one.name}`:\n"
            yield "\n".join(["| field | | type | default | meaning |", "|---|---|---|---|---|", *rows]) + "\n"


def _row(field: FieldExplanation, parts: Iterable[str]) -> str:
    default = {"None": "", "''": '`""`', "False": "`false`", "True": "`true`"}.get(
        repr(field.default), f"`{field.default}`"
    )
    type_text = _NAME.sub(lambda name: _link(name[0], parts), field.type)
    if field.choices and field.type == "string":
        type_text = ", ".join(f"`{choice}`" for choice in field.choices)
    mark = "R" if field.is_required else ""
    cells = (f"`{field.name}`", mark, type_text, default, field.about)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _link(name: str, parts: Iterable[str]) -> str:
    anchor = {f"{kind.uri.name}Spec": kind.uri.name for kind in CORE_TYPES}.get(name, name)
    return f"[{name}](#{anchor.lower()})" if name in parts or anchor != name else name
