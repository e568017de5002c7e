"""The gRPC services of sync: copies of datasets, access and webhooks."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from weakref import WeakValueDictionary

import grpc

from odf_common.adapters.grpc.comparison import encode_comparison
from odf_common.adapters.local.key_files import has_dataset_key
from odf_common.adapters.local.repositories import LocalRepositories
from odf_common.dataset.dataset_notes import RemoteAliases
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.ports.store import CatalogEntry
from odf_common.proto.odf.node.v1 import sync_pb2 as pb
from odf_common.proto.odf.node.v1 import sync_pb2_grpc
from odf_common.proto.odf.node.v1.access_pb2_grpc import add_AccessServicer_to_server
from odf_common.proto.odf.node.v1.coordinator_pb2 import Comparison
from odf_common.proto.odf.node.v1.webhooks_pb2_grpc import add_WebhooksServicer_to_server
from odf_common.service.request_reply import Replies
from odf_common.service.settings import Settings
from odf_sync.access.access_servicer import NAME as ACCESS
from odf_sync.access.access_servicer import AccessServicer
from odf_sync.access.remote_login import RemoteLogins
from odf_sync.search import Search, SearchHit
from odf_sync.smart.messages import DatasetVisibility
from odf_sync.transfer import aliases
from odf_sync.transfer.local_copy import Privacy, Step
from odf_sync.transfer.pull_dataset import compare, pull
from odf_sync.transfer.push_dataset import push
from odf_sync.transfer.push_source import Push
from odf_sync.webhooks.webhook_servicer import NAME as WEBHOOKS
from odf_sync.webhooks.webhook_servicer import WebhookServicer

MAX_FOUND_DATASETS: Final = 1000  # datasets in one answer
CALLER_CHECK_SECONDS: Final = 1.0  # between looks whether a caller that waits is still there


def register(
    server: grpc.Server, *, copies: "Servicer", access: AccessServicer, webhooks: WebhookServicer
) -> tuple[str, ...]:
    """Register the services for copies, access and webhooks, and return their names."""
    sync_pb2_grpc.add_SyncServicer_to_server(copies, server)
    add_AccessServicer_to_server(access, server)
    add_WebhooksServicer_to_server(webhooks, server)
    return (pb.DESCRIPTOR.services_by_name["Sync"].full_name, ACCESS, WEBHOOKS)


class Servicer(sync_pb2_grpc.SyncServicer):
    """Serves pulls, pushes, comparisons, aliases and searches. Pulls of the same name run one at a time."""

    def __init__(
        self,
        *,
        datasets: NodeDatasets,
        settings: Settings,
        replies: Replies,
        logins: RemoteLogins,
        privacy: Privacy,
        search: Search,
    ) -> None:
        """Copy to and from `datasets`; requests to other nodes use the tokens in `logins`."""
        self._logins = logins
        self._privacy = privacy
        self._datasets = datasets
        self._settings = settings
        self._search = search
        self._replies = replies
        self._guard = threading.Lock()
        self._busy: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        """Locks of running and waiting pulls, by the name that was requested."""

    def Pull(self, request: pb.SyncPullRequest, context: grpc.ServicerContext) -> Iterator[pb.SyncPullItem]:
        """Pull a dataset, and stream the progress."""
        with self._alone(request.alias or request.url, context) as is_wanted:
            if not is_wanted:
                return
            steps = pull(
                self._datasets,
                self._settings,
                request.url,
                request.alias,
                self._logins.token,
                replies=self._replies,
                rechecks=request.rechecks,
                is_forced=request.is_forced,
                trusts_records=request.trusts_records,
                privacy=self._privacy,
            )
            for step in steps:
                if not context.is_active():
                    return
                yield _message(step)

    @contextmanager
    def _alone(self, name: str, context: grpc.ServicerContext) -> Iterator[bool]:
        """Wait until no other pull of this name runs; yields False if the caller disconnects while waiting."""
        with self._guard:
            lock = self._busy.setdefault(name.lower(), threading.Lock())
        while not lock.acquire(timeout=CALLER_CHECK_SECONDS):
            if not context.is_active():
                yield False
                return
        try:
            yield True
        finally:
            lock.release()

    def Push(self, request: pb.SyncPushRequest, context: grpc.ServicerContext) -> Iterator[pb.SyncPullItem]:
        """Push a dataset, and stream the progress."""
        outgoing = Push(
            dataset=request.dataset,
            target=request.target,
            is_forced=request.is_forced,
            visibility=DatasetVisibility.PUBLIC if request.is_public else DatasetVisibility.PRIVATE,
            is_chosen=request.is_public or request.is_private,
        )
        for step in push(self._datasets, self._settings, outgoing, self._logins.token, self._privacy):
            if not context.is_active():
                return
            yield _message(step)

    def Compare(self, request: pb.SyncCompareRequest, context: grpc.ServicerContext) -> Comparison:
        """Compare a local dataset with a remote one."""
        return encode_comparison(
            *compare(self._datasets, self._settings, request.ref, request.url, self._logins.token)
        )

    def ListAliases(
        self, request: pb.ListAliasesRequest, context: grpc.ServicerContext
    ) -> pb.ListAliasesReply:
        """Return the datasets that have remote aliases, with the aliases."""
        datasets = aliases.list_aliases(
            self._datasets, request.refs, recursive=request.recursive, is_strict=request.is_strict
        )
        return pb.ListAliasesReply(datasets=[self._aliases(*dataset) for dataset in datasets])

    def ChangeAliases(
        self, request: pb.ChangeAliasesRequest, context: grpc.ServicerContext
    ) -> pb.DatasetAliases:
        """Change the remote aliases of a dataset, and return them."""
        change = aliases.AliasChange(
            add_pull=tuple(request.add_pull),
            add_push=tuple(request.add_push),
            delete_pull=tuple(request.delete_pull),
            delete_push=tuple(request.delete_push),
        )
        repositories = LocalRepositories(self._settings.home)
        return self._aliases(*aliases.change(self._datasets, repositories, request.ref, change))

    def Search(self, request: pb.SearchRequest, context: grpc.ServicerContext) -> pb.SearchReply:
        """Search for datasets of this node and of named repositories."""
        datasets, searched = self._search.find(request.text, request.repositories)
        return pb.SearchReply(
            datasets=[_found_dataset(dataset) for dataset in datasets[:MAX_FOUND_DATASETS]],
            left_out=max(0, len(datasets) - MAX_FOUND_DATASETS),
            repositories=[
                pb.SearchedRepository(
                    name=repository.name,
                    datasets=len(repository.datasets),
                    problem=repository.problem,
                )
                for repository in searched
            ],
        )

    def _aliases(self, entry: CatalogEntry, places: RemoteAliases) -> pb.DatasetAliases:
        is_ours = has_dataset_key(self._settings.home / "keys", entry.dataset_id)
        return pb.DatasetAliases(alias=entry.alias, pull=places.pull, push=places.push, is_ours=is_ours)


def _found_dataset(dataset: SearchHit) -> pb.FoundDataset:
    return pb.FoundDataset(
        repository=dataset.repository,
        name=dataset.name,
        dataset_id=dataset.dataset.id,
        kind=dataset.dataset.kind,
        description=dataset.dataset.description,
        keywords=dataset.dataset.keywords,
        columns=dataset.dataset.columns,
        found_in=dataset.found_in,
    )


def _message(step: Step) -> pb.SyncPullItem:
    return pb.SyncPullItem(
        alias=step.alias,
        state=step.state,
        done=step.done,
        total=step.total,
        head="" if step.head is None else str(step.head),
        new_blocks=step.new_blocks,
        new_records=step.new_records,
        replaced="" if step.replaced is None else str(step.replaced),
        missing_objects=step.missing_objects,
        missing_inputs=step.missing_inputs,
        is_private=step.is_private,
        target=step.target,
    )
