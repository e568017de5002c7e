"""Bodies of requests about resources, and of the answers: JSON or YAML."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from aiohttp import web

from odf_common.codec.yaml_syntax import json_value, write
from odf_common.errors import InvalidInput
from odf_common.proto.odf.node.v1 import resources_pb2 as pb
from odf_common.resources.registry import ResourceType
from odf_common.resources.resource_manifests import written_resources
from odf_sync.http.resource_client import JSON_MERGE_PATCH, ResourceClient, ResourceProblem

JSON, YAML = "application/json", "application/yaml"
YAML_TYPES: Final = frozenset({YAML, "application/x-yaml", "text/yaml", "text/x-yaml"})
PATCH_ATTEMPTS: Final = 5
Json = dict[str, Any]


def event_plain(event: pb.ResourceEventMessage) -> Json:
    """Return an event as an object of answers."""
    plain: Json = {
        "position": event.position,
        "id": event.id,
        "kind": event.kind,
        "generation": event.generation,
        "by": event.by,
        "time": event.time,
    }
    if event.payload:
        plain["payload"] = json.loads(event.payload)
    if event.json:
        plain["resource"] = json.loads(event.json)
    return plain


def merge_patch(target: Any, patch: Any) -> Any:
    """Return a JSON value after a merge patch (RFC 7396)."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def require_one(text: bytes, kind: ResourceType, named: str) -> None:
    """Raise `ResourceProblem` unless the body is one manifest of the type, and of the name if one is given."""
    with suppress(InvalidInput):  # the coordinator says what is wrong
        written = [one.plain for one in written_resources(text)]
        if len(written) != 1 or not isinstance(written[0], dict):
            raise ResourceProblem(status=400, error="InvalidInput", text="expected one manifest")
        schema, headers = written[0].get("$schema"), written[0].get("headers")
        if schema not in {str(kind.uri), kind.short_name}:
            text_ = f"expected a {kind.short_name}, got {schema}"
            raise ResourceProblem(status=422, error="SchemaViolation", text=text_)
        given = headers if isinstance(headers, dict) else {}
        names = {str(given.get(key, "")).lower() for key in ("name", "id")}
        if named and named.lower() not in names:
            text_ = f"the manifest is not of {named}"
            raise ResourceProblem(status=422, error="SchemaViolation", text=text_)


def patch_resource(client: ResourceClient, resource: pb.GetResourceRequest, change: Json, etag: str) -> Json:
    """Apply the manifest of a resource after a merge patch, and return the result; raises `ResourceProblem`.

    Without an expected version, the patch is repeated when something has changed meanwhile, such as the status.
    """
    for left in reversed(range(PATCH_ATTEMPTS)):
        before = client.get(resource)
        manifest = merge_patch(json.loads(before.input), change)
        call = pb.ApplyResourcesRequest(
            subject=resource.subject,
            files=[pb.ManifestFile(text=json.dumps(manifest).encode())],
            account=resource.account,
            etag=etag or before.etag,
        )
        try:
            (result,) = client.apply(call)
        except ResourceProblem as problem:
            if etag or not left or problem.error != "PreconditionFailed":
                raise
        else:
            return result
    raise AssertionError


def handles_in(value: Any, path: str) -> Iterator[Json]:
    """Yield the handles in a spec, with their paths."""
    if isinstance(value, dict):
        if "type" in value and "account" in value:
            yield {"path": path, **value}
            return
        for key, inner in value.items():
            yield from handles_in(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for n, inner in enumerate(value):
            yield from handles_in(inner, f"{path}[{n}]")


def merge_patch_of(text: bytes) -> Json:
    """Return the merge patch in a body; raises `ResourceProblem`."""
    try:
        change = json_value(text.decode(), "")
    except (ValueError, InvalidInput) as error:
        raise ResourceProblem(status=400, error="InvalidJson", text=str(error)) from error
    if not isinstance(change, dict):
        raise ResourceProblem(status=400, error="InvalidInput", text="expected an object, the merge patch")
    return change


async def body_of(request: web.Request) -> bytes:
    """Return the body of a request; raises `ResourceProblem` for another media type, and for one that is too large."""
    if request.content_type not in {JSON, JSON_MERGE_PATCH, *YAML_TYPES}:
        raise media_type_error(f"expected {JSON} or {YAML}, got {request.content_type}")
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise ResourceProblem(status=413, error="TooLarge", text="the body is too large") from error


def media_type_error(text: str) -> ResourceProblem:
    """Return the refusal of a media type."""
    return ResourceProblem(status=415, error="UnsupportedMediaType", text=text)


def flag_of(request: web.Request, name: str) -> bool:
    """Return whether a parameter of the query is true."""
    return request.query.get(name, "").lower() in {"true", "1"}


def choice_of(request: web.Request, name: str, choices: tuple[str, ...]) -> str:
    """Return a parameter of the query, by default the first of its values; raises `ResourceProblem` for others."""
    chosen = request.query.get(name, choices[0])
    if chosen not in choices:
        text = f"{name}: expected one of {', '.join(choices)}, got {chosen!r}"
        raise ResourceProblem(status=400, error="InvalidInput", text=text)
    return chosen


def answer_with(
    request: web.Request, plain: Json, *, status: int = 200, etag: str = "", **headers: str
) -> web.Response:
    """Return an answer, in YAML if the client asks for it."""
    sent = {**headers, **({"ETag": etag} if etag else {})}
    if any(kind in request.headers.get("Accept", "") for kind in YAML_TYPES):
        return web.Response(status=status, text=write(plain), content_type=YAML, headers=sent)
    text = json.dumps(plain, ensure_ascii=False)
    return web.Response(status=status, text=text, content_type=JSON, headers=sent)
