"""Endpoints of resources (RFC-018): apply, list, read, change, delete and watch them."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import wraps
from typing import Any, Final

import grpc
from aiohttp import web

from odf_common.proto.odf.node.v1 import resources_pb2 as pb
from odf_common.resources.registry import CORE_TYPES, ResourceType
from odf_common.resources.scalar_formats import VERSION_PATTERN, TypeUri
from odf_sync.access.rules import Caller, Scope
from odf_sync.http.authorization import Authorizer
from odf_sync.http.endpoints import Endpoint, caller_of
from odf_sync.http.resource_client import JSON_MERGE_PATCH, PROBLEM_TYPE, ResourceClient, ResourceProblem
from odf_sync.http.resource_documents import (
    JSON,
    YAML,
    answer_with,
    body_of,
    choice_of,
    event_plain,
    flag_of,
    handles_in,
    media_type_error,
    merge_patch_of,
    patch_resource,
    require_one,
)

IDEMPOTENCY_KEY: Final = "Idempotency-Key"
EVENT_STREAM: Final = "text/event-stream"
PING_SECONDS: Final = 15.0
MAX_POSITION_DIGITS: Final = 18  # of a number of 64 bits
_BODIES: Final = {"POST": JSON, "PUT": JSON, "PATCH": JSON_MERGE_PATCH}
TYPE: Final = "/{context}/{version}/{type}"
ONE: Final = TYPE + "/{ref}"
RUNS: Final = "/flow/v1alpha1/flow/{ref}/runs"
PATTERNS: Final = {
    "context": "[a-z][a-z0-9]*",  # also those of registered types
    "version": VERSION_PATTERN,
    "type": "[a-z0-9]+",
}
RESOURCE: Final = "/resource/v1alpha1"
REFUSALS: Final = (400, 401, 403, 404, 503)
CHANGES: Final = (*REFUSALS, 408, 409, 412, 413, 415, 422)  # 408: the body does not arrive
OF_ACCOUNT: Final = {"account": "Id, DID or name of an account; by default that of the token."}
Json = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Route = tuple[str, str, Handler, str, Mapping[str, str], tuple[int, ...]]


def answering(handler: Callable[["ResourceRoutes", web.Request], Awaitable[web.StreamResponse]]) -> Any:
    """Let a handler raise `ResourceProblem`."""

    @wraps(handler)
    async def answer(self: "ResourceRoutes", request: web.Request) -> web.StreamResponse:
        try:
            await self.learn_types(request)
            return await handler(self, request)
        except ResourceProblem as problem:
            return problem.response()

    return answer


def _type_key(uri: TypeUri) -> tuple[str, str, str]:
    return uri.context, uri.version, uri.name.lower()


def _path_key(request: web.Request) -> tuple[str, str, str]:
    return request.match_info["context"], request.match_info["version"], request.match_info["type"]


class ResourceRoutes:
    """Serves the resources that the coordinator keeps."""

    def __init__(self, client: ResourceClient, authorizer: Authorizer) -> None:
        """Act on behalf of the callers that `authorizer` knows."""
        self._client, self._authorizer = client, authorizer
        self._types = {_type_key(kind.uri): kind for kind in CORE_TYPES}
        self._watched: set[Any] = set()

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        return tuple(self._endpoint(route) for route in (*self._of_many(), *self._of_one()))

    def _endpoint(self, route: Route) -> Endpoint:
        method, path, handler, summary, query, statuses = route
        body = "" if handler in (self.reconcile, self.run_flow) else _BODIES.get(method, "")
        return Endpoint(
            method=method,
            path=path,
            patterns=PATTERNS if path.startswith(TYPE) else {},
            handler=handler,
            summary=summary,
            query=query,
            body=body,
            other_bodies=(YAML,) if body == JSON else (),
            statuses=statuses,
            on_shutdown=self._end_streams if handler == self.find else None,
            other_media_types=(YAML, EVENT_STREAM) if handler == self.find else (YAML,),
            refusal_media_types=(PROBLEM_TYPE, JSON, "text/plain"),
        )

    def _of_many(self) -> tuple[Route, ...]:
        listing = {
            **OF_ACCOUNT,
            "name": "Pattern of names; % stands for any characters.",
            "labels": "Label filter as JSON.",
            "phase": "Pending, Reconciling, Ready or Failed.",
            "limit": "Most items of an answer, 1 to 1000; by default 100.",
            "cursor": "`nextCursor` of the answer before.",
            "includeDeleted": "`true`: also those that are being deleted.",
        }
        applying = {
            **OF_ACCOUNT,
            "dryRun": "`true`: only say what would change.",
            "rebind": "`true`: names may mean other resources than before.",
            "prune": "Selector: what it matches and the batch does not have is deleted.",
        }
        changed = (*CHANGES, 200, 202)
        return (
            ("POST", RESOURCE + "/apply", self.apply, "Applies a batch of manifests.", applying, changed),
            ("GET", RESOURCE + "/types", self.types, "The types of resources.", {}, (*REFUSALS, 200)),
            ("POST", RESOURCE + "/types", self.add_types, "Registers types by schemas.", {}, (*CHANGES, 201)),
            (
                "GET",
                TYPE,
                self.find,
                "Resources of a type, or their changes as events.",
                listing,
                (*REFUSALS, 200, 410),
            ),
            ("POST", TYPE, self.create, "Creates a resource.", OF_ACCOUNT, (*CHANGES, 201)),
        )

    def _of_one(self) -> tuple[Route, ...]:
        viewing = {**OF_ACCOUNT, "view": "`input`: the manifest to apply again."}
        deleting = {
            **OF_ACCOUNT,
            "force": "`true`: also if others need it.",
            "cascade": "`foreground` (default): first what it owns; `orphan`: keep that.",
        }
        read, deleted = (*REFUSALS, 200), (*REFUSALS, 202, 204, 409, 412)
        reconciled = (*REFUSALS, 202, 409)
        of_runs = {**OF_ACCOUNT, "target": "Id, DID or name of a target; by default all."}
        changing = "Changes a resource by a JSON merge patch."
        of_parts: tuple[tuple[str, Handler, str], ...] = (
            ("status", self.status, "The status of a resource."),
            ("history", self.history, "The events of a resource."),
            ("references", self.references, "The resources that it refers to."),
            ("dependents", self.dependents, "The resources that refer to it."),
        )
        return (
            ("POST", RUNS, self.run_flow, "Starts runs of a flow now.", of_runs, reconciled),
            ("GET", RUNS, self.flow_runs, "The runs of a flow, newest first.", of_runs, read),
            ("GET", ONE, self.get, "A resource.", viewing, (*read, 304)),
            ("PUT", ONE, self.put, "Creates or replaces a resource.", OF_ACCOUNT, (*CHANGES, 200, 201)),
            ("PATCH", ONE, self.patch, changing, OF_ACCOUNT, (*CHANGES, 200)),
            ("DELETE", ONE, self.delete, "Requests the deletion of a resource.", deleting, deleted),
            *(
                ("GET", f"{ONE}/{part}", handler, about, OF_ACCOUNT, read)
                for part, handler, about in of_parts
            ),
            ("POST", ONE + "/reconcile", self.reconcile, "Reconciles it again.", OF_ACCOUNT, reconciled),
        )

    @answering
    async def apply(self, request: web.Request) -> web.StreamResponse:
        """Apply a batch."""
        call = pb.ApplyResourcesRequest(
            subject=self.subject_of(request, is_writing=True),
            files=[pb.ManifestFile(text=await body_of(request))],
            account=request.query.get("account", ""),
            dry_run=flag_of(request, "dryRun"),
            rebind=flag_of(request, "rebind"),
            prune=request.query.get("prune", ""),
            idempotency_key=request.headers.get(IDEMPOTENCY_KEY, ""),
        )
        results = await asyncio.to_thread(self._client.apply, call)
        is_same = call.dry_run or all(result["outcome"] == "unchanged" for result in results)
        return answer_with(request, {"results": results}, status=200 if is_same else 202)

    @answering
    async def types(self, request: web.Request) -> web.StreamResponse:
        """Return the types that the node knows."""
        reply = await asyncio.to_thread(self._client.types)
        items = [
            {"schema": one.schema, "shortName": one.short_name, "about": one.about}
            for one in reply.types
            if one.short_name
        ]
        return answer_with(request, {"items": items})

    @answering
    async def add_types(self, request: web.Request) -> web.StreamResponse:
        """Register types by their schemas."""
        call = pb.AddResourceTypesRequest(
            subject=self.subject_of(request, is_writing=True),
            files=[pb.ManifestFile(text=await body_of(request))],
        )
        reply = await asyncio.to_thread(self._client.add_types, call)
        items = [{"schema": one.schema, "shortName": one.short_name} for one in reply.types]
        return answer_with(request, {"items": items}, status=201)

    @answering
    async def find(self, request: web.Request) -> web.StreamResponse:
        """Return resources of a type, or stream their changes."""
        kind = self._kind(request)
        if EVENT_STREAM in request.headers.get("Accept", ""):
            return await self._watch(request, kind)
        query = request.query
        limit = query.get("limit", "100")
        if not limit.isdecimal() or not 1 <= int(limit) <= 1000:
            raise ResourceProblem(status=400, error="InvalidInput", text="limit: expected 1 to 1000")
        subject = self.subject_of(request)
        call = pb.ListResourcesRequest(
            subject=subject,
            types=[str(kind.uri)],
            account=query.get("account") or subject.did,
            name=query.get("name", ""),
            labels=query.get("labels", ""),
            phase=query.get("phase", ""),
            limit=int(limit),
            cursor=query.get("cursor", ""),
            include_deleted=flag_of(request, "includeDeleted"),
        )
        reply = await asyncio.to_thread(self._client.find, call)
        items = [json.loads(one) for one in reply.resources]
        following = {"nextCursor": reply.next_cursor} if reply.next_cursor else {}
        return answer_with(request, {"items": items, **following})

    @answering
    async def get(self, request: web.Request) -> web.StreamResponse:
        """Return a resource."""
        reply = await self._read(request)
        if reply.etag in request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers={"ETag": reply.etag})
        is_input = request.query.get("view") == "input"
        return answer_with(request, json.loads(reply.input if is_input else reply.json), etag=reply.etag)

    @answering
    async def status(self, request: web.Request) -> web.StreamResponse:
        """Return the status of a resource."""
        reply = await self._read(request)
        return answer_with(request, json.loads(reply.json)["status"], etag=reply.etag)

    @answering
    async def references(self, request: web.Request) -> web.StreamResponse:
        """Return the handles in a resource."""
        document = json.loads((await self._read(request)).json)
        return answer_with(request, {"items": [*handles_in(document["spec"], "spec")]})

    @answering
    async def dependents(self, request: web.Request) -> web.StreamResponse:
        """Return the resources that refer to a resource."""
        return answer_with(request, {"items": json.loads((await self._read(request)).dependents)})

    @answering
    async def history(self, request: web.Request) -> web.StreamResponse:
        """Return the events of a resource."""
        events = await asyncio.to_thread(self._client.history, self._resource_ref(request))
        return answer_with(request, {"items": [event_plain(event) for event in events]})

    @answering
    async def create(self, request: web.Request) -> web.StreamResponse:
        """Create a resource."""
        result = await self._apply_one(request, await body_of(request), is_create_only=True)
        uri = self._kind(request).uri
        location = f"/{uri.context}/{uri.version}/{uri.name.lower()}/{result['id']}"
        return answer_with(request, result, status=201, etag=result["etag"], Location=location)

    @answering
    async def put(self, request: web.Request) -> web.StreamResponse:
        """Create or replace the resource of the path."""
        text = await body_of(request)
        result = await self._apply_one(request, text, named=request.match_info["ref"])
        status = 201 if result["outcome"] == "created" else 200
        return answer_with(request, result, status=status, etag=result["etag"])

    @answering
    async def patch(self, request: web.Request) -> web.StreamResponse:
        """Change a resource: a merge patch of its manifest, then applied as any other."""
        if request.content_type not in {JSON_MERGE_PATCH, JSON}:
            raise media_type_error(f"expected {JSON_MERGE_PATCH}")
        change = merge_patch_of(await body_of(request))
        resource = self._resource_ref(request, is_writing=True)
        etag = request.headers.get("If-Match", "")
        result = await asyncio.to_thread(patch_resource, self._client, resource, change, etag)
        return answer_with(request, result, etag=result["etag"])

    @answering
    async def delete(self, request: web.Request) -> web.StreamResponse:
        """Request the deletion of a resource."""
        call = pb.DeleteResourceRequest(
            resource=self._resource_ref(request, is_writing=True),
            force=flag_of(request, "force"),
            orphan=choice_of(request, "cascade", ("foreground", "orphan")) == "orphan",
            etag=request.headers.get("If-Match", ""),
        )
        reply = await asyncio.to_thread(self._client.delete, call)
        if reply.is_gone:
            return web.Response(status=204)
        return answer_with(request, json.loads(reply.json), status=202, etag=reply.etag)

    @answering
    async def reconcile(self, request: web.Request) -> web.StreamResponse:
        """Request another attempt."""
        reply = await asyncio.to_thread(self._client.reconcile, self._resource_ref(request, is_writing=True))
        return answer_with(request, json.loads(reply.json), status=202, etag=reply.etag)

    @answering
    async def run_flow(self, request: web.Request) -> web.StreamResponse:
        """Start runs of a flow."""
        call = self._runs_request(request, is_writing=True)
        call.idempotency_key = request.headers.get(IDEMPOTENCY_KEY, "")
        return answer_with(
            request, {"items": await asyncio.to_thread(self._client.run_flow, call)}, status=202
        )

    @answering
    async def flow_runs(self, request: web.Request) -> web.StreamResponse:
        """Return the runs of a flow."""
        call = self._runs_request(request)
        return answer_with(request, {"items": await asyncio.to_thread(self._client.flow_runs, call)})

    def _runs_request(self, request: web.Request, *, is_writing: bool = False) -> pb.FlowRunsRequest:
        return pb.FlowRunsRequest(
            subject=self.subject_of(request, is_writing=is_writing),
            flow=request.match_info["ref"],
            account=request.query.get("account", ""),
            target=request.query.get("target", ""),
        )

    async def _read(self, request: web.Request) -> pb.ResourceReply:
        return await asyncio.to_thread(self._client.get, self._resource_ref(request))

    async def _apply_one(
        self,
        request: web.Request,
        text: bytes,
        *,
        named: str = "",
        is_create_only: bool = False,
    ) -> Json:
        require_one(text, self._kind(request), named)
        call = pb.ApplyResourcesRequest(
            subject=self.subject_of(request, is_writing=True),
            files=[pb.ManifestFile(text=text)],
            account=request.query.get("account", ""),
            create_only=is_create_only,
            etag=request.headers.get("If-Match", ""),
            idempotency_key=request.headers.get(IDEMPOTENCY_KEY, "") if is_create_only else "",
        )
        (result,) = await asyncio.to_thread(self._client.apply, call)
        return result

    async def _end_streams(self, _: web.Application) -> None:
        for call in [*self._watched]:
            call.cancel()

    async def _watch(self, request: web.Request, kind: ResourceType) -> web.StreamResponse:
        last = request.headers.get("Last-Event-ID", "")
        if len(last) > MAX_POSITION_DIGITS or (last and not last.isdecimal()):
            text = f"Last-Event-ID: expected the id of an event, got {last[:MAX_POSITION_DIGITS]}"
            raise ResourceProblem(status=400, error="InvalidInput", text=text)
        wanted = pb.WatchResourcesRequest(
            subject=self.subject_of(request), types=[str(kind.uri)], position=int(last or -1)
        )
        call: Any = await asyncio.to_thread(self._client.watch, wanted)
        self._watched.add(call)
        response = web.StreamResponse(headers={"Content-Type": EVENT_STREAM, "Cache-Control": "no-store"})
        await response.prepare(request)
        try:
            async for event in _events(call):
                data = json.dumps(event_plain(event), ensure_ascii=False)
                text = f"id: {event.position}\nevent: {event.kind}\ndata: {data}\n\n" if event.id else ":\n\n"
                await response.write(text.encode())
        finally:
            self._watched.discard(call)
            call.cancel()
        return response

    def _kind(self, request: web.Request) -> ResourceType:
        context, version, name = key = _path_key(request)
        if key in self._types:
            return self._types[key]
        text = f"/{context}/{version}/{name} is no type of resources; see {RESOURCE}/types"
        raise ResourceProblem(status=404, error="UnknownType", text=text)

    async def learn_types(self, request: web.Request) -> None:
        """Ask the coordinator for the types that were registered, if the path names an unknown one."""
        if "type" not in request.match_info or _path_key(request) in self._types:
            return
        for one in (await asyncio.to_thread(self._client.types)).types:
            uri = TypeUri.parse(one.schema)
            if one.short_name:
                kind = ResourceType(uri=uri, about=one.about, short_name=one.short_name)
                self._types.setdefault(_type_key(uri), kind)

    def _resource_ref(self, request: web.Request, *, is_writing: bool = False) -> pb.GetResourceRequest:
        return pb.GetResourceRequest(
            subject=self.subject_of(request, is_writing=is_writing),
            type=str(self._kind(request).uri),
            ref=request.match_info["ref"],
            account=request.query.get("account", ""),
        )

    def subject_of(self, request: web.Request, *, is_writing: bool = False) -> pb.ResourceSubject:
        """Return on whose behalf a request acts; raises `ResourceProblem` for one that may not."""
        caller = caller_of(request)
        if caller.has_invalid_token or (caller.account is None and not self._is_local(caller)):
            raise ResourceProblem(
                status=401, error="Unauthenticated", text="resources need a token", hint="odf token create"
            )
        if caller.only is not None:
            raise ResourceProblem(status=403, error="Forbidden", text="the token allows one dataset only")
        if is_writing and caller.scope is Scope.READ:
            raise ResourceProblem(status=403, error="Forbidden", text="the token allows reading only")
        is_multi_tenant = self._authorizer.directory.is_multi_tenant
        if caller.account is None:
            return pb.ResourceSubject()
        account = caller.account
        return pb.ResourceSubject(
            did=str(account.id),
            name=str(account.name),
            is_admin=not is_multi_tenant,
            may_grant=caller.scope is Scope.MANAGE,
        )

    def _is_local(self, caller: Caller) -> bool:
        return self._authorizer.trusts_local(caller)


async def _events(call: Any) -> AsyncIterator[pb.ResourceEventMessage]:
    """Return the events of a call; an empty one after each pause, so that a client which has gone is noticed."""
    following = asyncio.ensure_future(asyncio.to_thread(next, call, None))
    while True:
        done, _ = await asyncio.wait({following}, timeout=PING_SECONDS)
        if not done:
            yield pb.ResourceEventMessage()
            continue
        with suppress(grpc.RpcError):
            event = following.result()
            if event is not None:
                yield event
                following = asyncio.ensure_future(asyncio.to_thread(next, call, None))
                continue
        return
