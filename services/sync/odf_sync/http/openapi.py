"""`/openapi.json`: the OpenAPI 3.1 description of the server, generated from its endpoints."""

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final

from aiohttp import web

from odf_sync.http.authorization import Authorizer
from odf_sync.http.endpoints import Endpoint

JSON: Final = "application/json"
IN_PATH: Final = re.compile(r"{(\w+)}")
ANY_ENDPOINT: Final = (
    400,
    429,
    503,
)  # a malformed header; too many of a caller, of all, or accounts unreadable
OF_DATASETS: Final = (401, 403, 404)
REFUSAL: Final = {"type": "object", "required": ["message"], "properties": {"message": {"type": "string"}}}
OPTIONAL_TOKEN: Final[list[dict[str, list[str]]]] = [{}, {"token": []}]
Json = dict[str, Any]


def with_description(authorizer: Authorizer, endpoints: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
    """Return the endpoints, and the one that describes them all."""

    async def send(_: web.Request) -> web.Response:
        return web.json_response(description)

    own = Endpoint(method="GET", path="/openapi.json", handler=send, summary="This description.")
    served = (*endpoints, own)
    description = describe(authorizer, served)
    return served


def describe(authorizer: Authorizer, endpoints: Iterable[Endpoint]) -> Json:
    """Return the description of endpoints."""
    paths: Json = {}
    for endpoint in endpoints:
        for path in endpoint.full_paths(authorizer):
            paths.setdefault(path, {})[endpoint.method.lower()] = _operation(path, endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Open Data Fabric node", "version": version("odf-common")},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(path: str, endpoint: Endpoint) -> Json:
    parameters = [_parameter(name, "path", "", is_required=True) for name in IN_PATH.findall(path)]
    parameters += [
        _parameter(name, "query", about, is_required=False) for name, about in endpoint.query.items()
    ]
    statuses = {*endpoint.statuses, *ANY_ENDPOINT, *(OF_DATASETS if endpoint.action is not None else ())}
    operation: Json = {
        "summary": endpoint.summary,
        "parameters": parameters,
        "responses": {str(status): _response(status, endpoint) for status in sorted(statuses)},
        "security": OPTIONAL_TOKEN,
    }
    if endpoint.body:
        operation["requestBody"] = {"content": {endpoint.body: {"schema": _body(endpoint.fields)}}}
    return operation


def _body(fields: tuple[str, ...]) -> Json:
    if not fields:
        return {"type": "string", "format": "binary"}
    properties = {name: {"type": "string"} for name in fields}
    return {"type": "object", "required": [*fields], "properties": properties}


def _response(status: int, endpoint: Endpoint) -> Json:
    content: Json = {}
    if status >= HTTPStatus.BAD_REQUEST:
        content = {
            media_type: {"schema": REFUSAL} if media_type == JSON else {}
            for media_type in endpoint.refusal_media_types
        }
    elif status >= HTTPStatus.OK and status != HTTPStatus.NOT_MODIFIED and endpoint.media_type:
        content = {endpoint.media_type: {}}
    return {"description": HTTPStatus(status).phrase} | ({"content": content} if content else {})


def _parameter(name: str, place: str, about: str, *, is_required: bool) -> Mapping[str, object]:
    plain = {"name": name, "in": place, "required": is_required, "schema": {"type": "string"}}
    return plain | ({"description": about} if about else {})
