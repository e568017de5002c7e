"""Resources over GraphQL (RFC-018): the same operations as over REST, with documents as JSON.

References from one resource to another are not followed here: types that are registered while the node runs need no
other schema. Errors of an operation are data, with the codes of REST.
"""

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final, NewType, TypeVar

import strawberry
import structlog
from aiohttp import web
from graphql import GraphQLError
from strawberry.extensions import MaxAliasesLimiter, MaxTokensLimiter, QueryDepthLimiter
from strawberry.schema.config import StrawberryConfig
from strawberry.types import Info

from odf_common.codec.yaml_syntax import json_value
from odf_common.errors import InvalidInput
from odf_common.proto.odf.node.v1 import resources_pb2 as pb
from odf_sync.http.endpoints import FAILED, Endpoint
from odf_sync.http.resource_client import ResourceClient, ResourceProblem
from odf_sync.http.resource_documents import patch_resource

log = structlog.stdlib.get_logger(__name__)

MAX_DEPTH: Final = 12
MAX_TOKENS: Final = 2000
MAX_ALIASES: Final = 15  # each may be an operation
MAX_ITEMS: Final = 1000
JSON: Final = "application/json"
SubjectOf = Callable[..., pb.ResourceSubject]
"""Takes a request and `is_writing`; raises `ResourceProblem` for a caller who may not."""
T = TypeVar("T")

if TYPE_CHECKING:
    Json = Any
else:
    Json = NewType("Json", object)
_JSON: Final = strawberry.scalar(
    name="JSON",
    description="Any JSON value.",
    serialize=lambda value: value,
    parse_value=lambda value: value,
)


@strawberry.type(name="Refusal", description="An operation that was refused.")
class RefusedOperation:
    """An operation that was refused."""

    code: str
    message: str
    hint: str
    problems: Json = strawberry.field(description="Errors of manifests, with their places.")


@strawberry.type(description="The effects of applied manifests, in the order of their dependencies.")
class Applied:
    """The effects of applied manifests, in the order of their dependencies."""

    results: Json


@strawberry.type(description="A resource in its canonical form, and its version.")
class ResourceDocument:
    """A resource in its canonical form, and its version."""

    resource: Json
    etag: str


@strawberry.type(description="A page of resources in their canonical form.")
class ResourcePage:
    """A page of resources in their canonical form."""

    items: Json
    next_cursor: str | None


@strawberry.type(description="A type of resources.")
class TypeOfResource:
    """A type of resources."""

    schema: str
    short_name: str
    about: str


@strawberry.input(description="A resource by its id, DID or name; a name is looked up in an account.")
class ResourceReferenceInput:
    """A resource by its id, DID or name; a name is looked up in an account."""

    type: str
    ref: str
    account: str = ""


ApplyResult = Annotated[Applied | RefusedOperation, strawberry.union("ApplyResult")]
ResourceResult = Annotated[ResourceDocument | RefusedOperation, strawberry.union("ResourceResult")]


class Operations:
    """The operations of one request."""

    def __init__(self, client: ResourceClient, request: web.Request, subject_of: SubjectOf) -> None:
        """Act on behalf of the caller of the request."""
        self.client, self._request, self._subject_of = client, request, subject_of

    def subject(self, *, is_writing: bool = False) -> pb.ResourceSubject:
        """Return on whose behalf the request acts; raises `ResourceProblem`."""
        return self._subject_of(self._request, is_writing=is_writing)

    def resource_request(
        self, ref: ResourceReferenceInput, *, is_writing: bool = False
    ) -> pb.GetResourceRequest:
        """Return the request for a resource."""
        subject = self.subject(is_writing=is_writing)
        return pb.GetResourceRequest(subject=subject, type=ref.type, ref=ref.ref, account=ref.account)

    async def attempt(self, operation: Callable[[], T]) -> T | RefusedOperation:
        """Return the result of an operation, or its refusal."""
        try:
            return await asyncio.to_thread(operation)
        except ResourceProblem as problem:
            return RefusedOperation(
                code=problem.error, message=problem.text, hint=problem.hint, problems=list(problem.problems)
            )


def _operations(info: Info[Any, None]) -> Operations:
    operations: Operations = info.context
    return operations


def _document(reply: pb.ResourceReply) -> ResourceDocument:
    return ResourceDocument(resource=json.loads(reply.json), etag=reply.etag)


@strawberry.type(description="Resources as they are.")
class ResourceQueries:
    """Resources as they are."""

    @strawberry.field(name="list", description="Resources of a type, by name.")
    async def find(
        self,
        info: Info[Any, None],
        type: str,
        account: str = "",
        name: str = "",
        labels: Json | None = None,
        phase: str = "",
        first: int = 100,
        after: str = "",
    ) -> ResourcePage:
        operations = _operations(info)
        request = pb.ListResourcesRequest(
            subject=operations.subject(),
            types=[type],
            account=account,
            name=name,
            labels=json.dumps(labels or {}) if labels else "",
            phase=phase,
            limit=max(1, min(first, MAX_ITEMS)),
            cursor=after,
        )
        reply = await asyncio.to_thread(operations.client.find, request)
        items = [json.loads(one) for one in reply.resources]
        return ResourcePage(items=items, next_cursor=reply.next_cursor or None)

    @strawberry.field(description="One resource; null if it does not exist, or the caller may not see it.")
    async def get(self, info: Info[Any, None], ref: ResourceReferenceInput) -> ResourceDocument | None:
        operations = _operations(info)
        request = operations.resource_request(ref)
        try:
            return _document(await asyncio.to_thread(operations.client.get, request))
        except ResourceProblem as problem:
            if problem.status == 404:
                return None
            raise

    @strawberry.field(description="The types that the node knows.")
    async def types(self, info: Info[Any, None]) -> list[TypeOfResource]:
        reply = await asyncio.to_thread(_operations(info).client.types)
        return [
            TypeOfResource(schema=one.schema, short_name=one.short_name, about=one.about)
            for one in reply.types
        ]


@strawberry.type(description="Changes of resources.")
class ResourceMutations:
    """Changes of resources."""

    @strawberry.field(description="Apply manifests, all or none: as JSON, or as a YAML stream.")
    async def apply(
        self,
        info: Info[Any, None],
        manifests: list[Json] | None = None,
        yaml: str | None = None,
        account: str = "",
        dry_run: bool = False,
        rebind: bool = False,
    ) -> ApplyResult:
        operations = _operations(info)

        def run() -> Applied:
            if (manifests is None) == (yaml is None):
                raise ResourceProblem(status=400, error="InvalidInput", text="give either manifests or yaml")
            text = json.dumps(manifests) if yaml is None else yaml
            request = pb.ApplyResourcesRequest(
                subject=operations.subject(is_writing=True),
                files=[pb.ManifestFile(text=text.encode())],
                account=account,
                dry_run=dry_run,
                rebind=rebind,
            )
            return Applied(results=operations.client.apply(request))

        return await operations.attempt(run)

    @strawberry.field(description="Change a resource by a JSON merge patch of its manifest.")
    async def patch(
        self,
        info: Info[Any, None],
        ref: ResourceReferenceInput,
        patch: Json,
        etag: str = "",
    ) -> ResourceResult:
        operations = _operations(info)

        def run() -> ResourceDocument:
            resource = operations.resource_request(ref, is_writing=True)
            result = patch_resource(operations.client, resource, patch, etag)
            found = pb.GetResourceRequest(
                subject=operations.subject(), type=ref.type, ref=result["id"], account=ref.account
            )
            return _document(operations.client.get(found))

        return await operations.attempt(run)

    @strawberry.field(description="Give a resource another name.")
    async def rename(
        self, info: Info[Any, None], ref: ResourceReferenceInput, new_name: str, etag: str = ""
    ) -> ResourceResult:
        operations = _operations(info)
        return await operations.attempt(
            lambda: _document(
                operations.client.rename(
                    pb.RenameResourceRequest(
                        resource=operations.resource_request(ref, is_writing=True), name=new_name, etag=etag
                    )
                )
            )
        )

    @strawberry.field(description="Request the deletion of a resource.")
    async def delete(
        self,
        info: Info[Any, None],
        ref: ResourceReferenceInput,
        cascade: str = "foreground",
        force: bool = False,
        etag: str = "",
    ) -> ResourceResult:
        operations = _operations(info)
        return await operations.attempt(
            lambda: _document(
                operations.client.delete(
                    pb.DeleteResourceRequest(
                        resource=operations.resource_request(ref, is_writing=True),
                        force=force,
                        orphan=cascade == "orphan",
                        etag=etag,
                    )
                )
            )
        )

    @strawberry.field(description="Reconcile a resource again.")
    async def reconcile(self, info: Info[Any, None], ref: ResourceReferenceInput) -> ResourceResult:
        operations = _operations(info)
        return await operations.attempt(
            lambda: _document(operations.client.reconcile(operations.resource_request(ref, is_writing=True)))
        )


@strawberry.type
class Query:
    """Reads."""

    @strawberry.field(description="Resources as they are.")
    def resources(self) -> ResourceQueries:
        return ResourceQueries()


@strawberry.type
class Mutation:
    """Changes."""

    @strawberry.field(description="Changes of resources.")
    def resources(self) -> ResourceMutations:
        return ResourceMutations()


SCHEMA: Final = strawberry.Schema(
    query=Query,
    mutation=Mutation,
    config=StrawberryConfig(auto_camel_case=True, scalar_map={Json: _JSON}),
    extensions=[
        lambda: QueryDepthLimiter(max_depth=MAX_DEPTH),
        lambda: MaxTokensLimiter(max_token_count=MAX_TOKENS),
        lambda: MaxAliasesLimiter(max_alias_count=MAX_ALIASES),
    ],
)


class GraphqlRoutes:
    """Serves GraphQL to the callers of REST."""

    def __init__(self, client: ResourceClient, subject_of: SubjectOf) -> None:
        """Pass operations to the coordinator, each on behalf of its caller."""
        self._client, self._subject_of = client, subject_of

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        query = Endpoint(
            method="POST",
            path="/graphql",
            handler=self.answer,
            summary="Resources over GraphQL.",
            body=JSON,
            fields=("query",),
            statuses=(200, 400, 413, 415),
        )
        schema = Endpoint(
            method="GET",
            path="/graphql/schema",
            handler=self.schema,
            summary="The schema of GraphQL.",
            media_type="text/plain",
        )
        return (query, schema)

    async def schema(self, _: web.Request) -> web.Response:
        """Return the schema in GraphQL's own language."""
        return web.Response(text=SCHEMA.as_str())

    async def answer(self, request: web.Request) -> web.Response:
        """Return the result of a query or mutation; its errors are in the body, as GraphQL has it."""
        if request.content_type != JSON:
            return web.json_response({"message": f"expected {JSON}"}, status=415)
        try:
            body = json_value(await request.text(), "")
        except web.HTTPRequestEntityTooLarge:
            return web.json_response({"message": "the body is too large"}, status=413)
        except (ValueError, LookupError, InvalidInput):  # LookupError: an unknown charset
            body = None
        if not isinstance(body, dict) or not isinstance(body.get("query"), str):
            return web.json_response({"message": "expected an object with a query"}, status=400)
        variables = body.get("variables") or {}
        if not isinstance(variables, dict):
            return web.json_response({"message": "expected variables as an object"}, status=400)
        result = await SCHEMA.execute(
            body["query"],
            variable_values=variables,
            context_value=Operations(self._client, request, self._subject_of),
            operation_name=str(body["operationName"]) if body.get("operationName") else None,
        )
        answer: dict[str, object] = {"data": result.data}
        if result.errors:
            answer["errors"] = [_error(error) for error in result.errors]
        return web.json_response(answer)


def _error(error: GraphQLError) -> dict[str, object]:
    """Return an error without what only the node's log may have."""
    cause = error.original_error
    if isinstance(cause, ResourceProblem):
        return {**error.formatted, "extensions": {"code": cause.error, "status": cause.status}}
    if cause is not None:
        log.error("a query failed", why=repr(cause))
        return {**error.formatted, "message": FAILED}
    return dict(error.formatted)
