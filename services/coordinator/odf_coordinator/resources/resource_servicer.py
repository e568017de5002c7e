"""Resources over gRPC, for commands, the HTTP server and the controllers of other services. Callers are trusted."""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import grpc

from odf_common.errors import InvalidInput
from odf_common.proto.odf.node.v1 import resources_pb2 as pb
from odf_common.proto.odf.node.v1.resources_pb2_grpc import ResourcesServicer, add_ResourcesServicer_to_server
from odf_common.resources.failures import FailureClass
from odf_common.resources.references import AccountRef
from odf_common.resources.resource_manifests import InvalidManifests, WrittenResource, written_batch
from odf_common.resources.scalar_formats import ResourceId
from odf_common.resources.selectors import Selector
from odf_coordinator.resources import documents
from odf_coordinator.resources.apply import Options
from odf_coordinator.resources.attempts import AttemptEnd, Attempts
from odf_coordinator.resources.callers import Subject
from odf_coordinator.resources.documents import etag, type_id
from odf_coordinator.resources.relation_watch import watch_grants
from odf_coordinator.resources.requests import Repeated, RequestKey
from odf_coordinator.resources.secret_rotation import SecretRotation
from odf_coordinator.resources.store import (
    Cursor,
    FencingToken,
    Position,
    Query,
    ResourceEvent,
    StoredResource,
)
from odf_coordinator.resources.use_cases import DEFAULT_LIMIT, Batch, ResourceRef, Resources
from odf_coordinator.resources.watch import Watch

NAME: Final = pb.DESCRIPTOR.services_by_name["Resources"].full_name
FROM_NOW: Final = -1
WATCHING: Final = "odf-watching"


class ResourceServicer(ResourcesServicer):
    """Serves the resources of a node."""

    def __init__(
        self, resources: Resources, attempts: Attempts, watch: Watch, rotation: SecretRotation
    ) -> None:
        """Serve use cases, the attempts of controllers, changes as they happen, and rotations of keys."""
        self._resources, self._attempts, self._watch = resources, attempts, watch
        self._rotation = rotation

    def ApplyResources(
        self, request: pb.ApplyResourcesRequest, _: grpc.ServicerContext
    ) -> pb.ApplyResourcesReply:
        """Apply a batch, or say what applying it would do."""
        try:
            batch = Batch(
                written=_documents(request.files),
                options=Options(
                    account=AccountRef.parse(request.account) if request.account else None,
                    is_rebinding=request.rebind,
                ),
                prune=self._selector(_json_or_text(request.prune)) if request.prune else None,
                is_create_only=request.create_only,
                etag=request.etag,
                key=_request_key(request),
            )
            apply = self._resources.dry_run if request.dry_run else self._resources.apply
            outcomes = apply(subject_of(request.subject), batch)
        except Repeated as repeated:
            return pb.ApplyResourcesReply(results=_dump(repeated.answer))
        except InvalidManifests as error:
            return pb.ApplyResourcesReply(problems=_dump([one.plain() for one in error.problems]))
        return pb.ApplyResourcesReply(results=_dump([one.plain() for one in outcomes]))

    def GetResource(self, request: pb.GetResourceRequest, _: grpc.ServicerContext) -> pb.ResourceReply:
        """Return a resource, and those that refer to it."""
        subject, wanted = subject_of(request.subject), _resource_ref(request)
        if request.for_use:
            return self._reply(self._resources.use(subject, wanted))
        found = self._resources.get(subject, wanted, is_deleted_too=request.include_deleted)
        reply = self._reply(found)
        users = self._resources.dependents(subject, wanted)
        reply.dependents = _dump([self._item(user) for user in users])
        return reply

    def ListResources(
        self, request: pb.ListResourcesRequest, _: grpc.ServicerContext
    ) -> pb.ListResourcesReply:
        """Return a page of resources."""
        selector = None
        if request.labels:
            if len(request.types) != 1:
                raise InvalidInput(where="labels", text="labels select resources of one type")
            plain = {"type": request.types[0], "labels": _json(request.labels, "labels"), "account": "%"}
            selector = self._selector(plain)
        subject = subject_of(request.subject)
        query = Query(
            types=[self._type(name) for name in request.types],
            accounts=self._resources.accounts_named(subject, request.account),
            name=request.name or "%",
            phase=request.phase or None,
            include_deleted=request.include_deleted,
            after=_cursor(request.cursor),
            limit=request.limit or DEFAULT_LIMIT,
        )
        found, following, position = self._resources.find(subject, query, selector)
        return pb.ListResourcesReply(
            resources=[_dump(one.document) for one in found],
            next_cursor="" if following is None else _cursor_text(following),
            position=position,
        )

    def DeleteResource(self, request: pb.DeleteResourceRequest, _: grpc.ServicerContext) -> pb.ResourceReply:
        """Request the deletion of a resource."""
        subject, wanted = subject_of(request.resource.subject), _resource_ref(request.resource)
        found = self._resources.delete(
            subject,
            wanted,
            is_forced=request.force,
            is_orphaning=request.orphan,
            expected=request.etag,
        )
        return self._reply(found)

    def RenameResource(self, request: pb.RenameResourceRequest, _: grpc.ServicerContext) -> pb.ResourceReply:
        """Give a resource another name."""
        subject, wanted = subject_of(request.resource.subject), _resource_ref(request.resource)
        return self._reply(self._resources.rename(subject, wanted, request.name, request.etag))

    def ReconcileResource(self, request: pb.GetResourceRequest, _: grpc.ServicerContext) -> pb.ResourceReply:
        """Request another attempt."""
        found = self._resources.get(subject_of(request.subject), _resource_ref(request))
        self._watch.request(found)
        return self._reply(found)

    def ShowHistory(
        self, request: pb.GetResourceRequest, _: grpc.ServicerContext
    ) -> Iterator[pb.ResourceEventMessage]:
        """Return the events of a resource."""
        for event in self._resources.history(subject_of(request.subject), _resource_ref(request)):
            message = event_message(event)
            message.payload = b"" if event.payload is None else _dump(event.payload)
            yield message

    def ListResourceTypes(
        self, _request: pb.ListResourceTypesRequest, _: grpc.ServicerContext
    ) -> pb.ListResourceTypesReply:
        """Return the types that the node knows."""
        schemas = self._resources.schemas()
        items = [
            pb.ResourceTypeItem(
                schema=str(kind.uri),
                short_name=kind.short_name,
                about=kind.about,
                json_schema=_dump(schemas.pop(str(kind.uri))) if str(kind.uri) in schemas else b"",
            )
            for kind in self._resources.types()
        ]
        items += [pb.ResourceTypeItem(schema=uri, json_schema=_dump(one)) for uri, one in schemas.items()]
        return pb.ListResourceTypesReply(types=items)

    def AddResourceTypes(
        self, request: pb.AddResourceTypesRequest, _: grpc.ServicerContext
    ) -> pb.ListResourceTypesReply:
        """Register types by their schemas."""
        written = [one.plain for one in _documents(request.files)]
        added = self._resources.add_types(subject_of(request.subject), written)
        items = [pb.ResourceTypeItem(schema=one.schema, short_name=one.short_name) for one in added]
        return pb.ListResourceTypesReply(types=items)

    def WatchResources(
        self, request: pb.WatchResourcesRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ResourceEventMessage]:
        """Stream changes until the call ends."""
        types = frozenset(self._type(name) for name in request.types)
        start = None if request.position == FROM_NOW else Position(request.position)
        subject = subject_of(request.subject)
        self._watch.require_known(start)
        context.send_initial_metadata(((WATCHING, "1"),))  # the client learns that the position is known
        for event, resource in self._watch.changes(start, context.is_active):
            if resource is not None and types and resource.type not in types:
                continue
            if not self._resources.may_read(subject, resource):
                continue
            message = event_message(event)
            message.type = "" if resource is None else resource.schema
            message.json = b"" if resource is None else _dump(resource.document)
            yield message

    def WatchDueResources(
        self, request: pb.WatchDueResourcesRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.DueResource]:
        """Stream the ids of resources that have to be reconciled until the call ends."""
        types = frozenset(self._type(schema) for schema in request.types)
        for due in self._watch.due_ids(types, context.is_active):
            yield pb.DueResource(id=due or "")

    def WatchDatasetGrants(
        self, _: pb.WatchDatasetGrantsRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.DatasetGrants]:
        """Stream the rights on datasets, and between changes an empty message each second."""
        for grants in watch_grants(self._resources.store, self._watch, context.is_active):
            items = [
                pb.DatasetGrantItem(dataset=one.dataset, account=one.account, right=one.right, by=one.by)
                for one in grants or ()
            ]
            yield pb.DatasetGrants(has_changed=grants is not None, grants=items)

    def BeginAttempts(
        self, request: pb.BeginAttemptsRequest, _: grpc.ServicerContext
    ) -> pb.BeginAttemptsReply:
        """Lease resources for their controller."""
        ids = [*map(ResourceId, request.ids)]
        begun, held = self._attempts.begin(ids, request.holder, ttl_ms=request.lease_ms)
        items = [
            pb.BegunAttempt(json=_dump(one.resource.document), token=one.token, is_deleting=one.is_deleting)
            for one in begun
        ]
        return pb.BeginAttemptsReply(begun=items, held=held)

    def EndAttempts(self, request: pb.EndAttemptsRequest, _: grpc.ServicerContext) -> pb.EndAttemptsReply:
        """Write the outcomes of attempts."""
        ends = {
            ResourceId(one.id): AttemptEnd(
                token=FencingToken(one.token),
                generation=one.generation,
                failure=one.failure,
                message=one.message,
                failure_class=FailureClass(one.failure_class or FailureClass.PERMANENT),
                conditions=json.loads(one.conditions or b"{}"),
                is_cleanup=one.is_cleanup,
            )
            for one in request.outcomes
        }
        return pb.EndAttemptsReply(retry_after=self._attempts.end(ends))

    def RotateSecretKeys(
        self, request: pb.RotateSecretKeysRequest, _: grpc.ServicerContext
    ) -> pb.RotateSecretKeysReply:
        """Encrypt secrets by new keys, or drop former ones."""
        done = self._rotation.drop_former() if request.drop_former else self._rotation.rotate()
        return pb.RotateSecretKeysReply(
            kid=done.keys.keys[0].kid,
            rewrapped=done.number,
            unreadable=done.unreadable,
            keys=len(done.keys.keys),
        )

    def _reply(self, found: StoredResource) -> pb.ResourceReply:
        kind = self._resources.types().of_schema(found.schema)
        return pb.ResourceReply(
            json=_dump(found.document),
            etag=etag(found),
            input=_dump(documents.input_view(kind, found.document)),
        )

    def _item(self, resource: StoredResource) -> dict[str, object]:
        kind = self._resources.types().of_schema(resource.schema)
        return {"type": kind.short_name, "id": resource.id, "name": resource.name}

    def _selector(self, plain: object) -> Selector:
        return Selector.parse(plain, self._resources.types().uri_of)

    def _type(self, name: str) -> Any:
        return type_id(self._resources.types().of_name(name).uri)


def register(server: grpc.Server, servicer: ResourceServicer) -> tuple[str, ...]:
    """Add the service to a server; returns its full name."""
    add_ResourcesServicer_to_server(servicer, server)
    return (NAME,)


def _request_key(request: pb.ApplyResourcesRequest) -> RequestKey | None:
    if not request.idempotency_key or request.dry_run:
        return None
    compared = pb.ApplyResourcesRequest()
    compared.CopyFrom(request)
    compared.ClearField("subject")
    return RequestKey.read(request.idempotency_key, compared.SerializeToString(deterministic=True))


def event_message(event: ResourceEvent) -> pb.ResourceEventMessage:
    """Return an event without its payload."""
    return pb.ResourceEventMessage(
        position=event.position,
        id=event.resource,
        kind=event.kind.value,
        generation=event.generation,
        by=event.subject,
        time=event.time_ms,
    )


def _documents(files: Sequence[pb.ManifestFile]) -> tuple[WrittenResource, ...]:
    """Return the documents of files; a request without files announces the account that sends it."""
    return written_batch((file.name, file.text) for file in files) if files else ()


def subject_of(message: pb.ResourceSubject) -> Subject:
    """Return on whose behalf a request is made."""
    if not message.name and not message.did:
        return Subject()
    return Subject(did=message.did, name=message.name, is_admin=message.is_admin, may_grant=message.may_grant)


def _resource_ref(request: pb.GetResourceRequest) -> ResourceRef:
    return ResourceRef(type=request.type, ref=request.ref, account=request.account)


def _json_or_text(text: str) -> object:
    return _json(text, "prune") if text.startswith("{") else text


def _json(text: str, where: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInput(where=where, text=f"not JSON: {error}") from error


def _dump(plain: Mapping[str, Any] | list[Any]) -> bytes:
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()


def _cursor_text(cursor: Cursor) -> str:
    return base64.urlsafe_b64encode(f"{cursor.id}{cursor.name}".encode()).decode()


def _cursor(text: str) -> Cursor | None:
    if not text:
        return None
    try:
        decoded = base64.urlsafe_b64decode(text).decode()
    except ValueError as error:
        raise InvalidInput(where="cursor", text="expected the cursor of an earlier answer") from error
    return Cursor(id=ResourceId(decoded[:36]), name=decoded[36:])
