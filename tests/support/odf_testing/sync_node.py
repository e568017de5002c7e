"""The parts of a node for transfers: its stores, a coordinator that answers at once, and the HTTP server."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import pytest
import yaml

from odf_common.codec.envelopes import Body, Envelope, envelope
from odf_common.codec.flatbuffers import block_hash, decode_block, encode_block
from odf_common.codec.signature import encode_signature
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.identity.keys import PrivateKey, sign_block
from odf_common.metadata.events import MetadataEvent
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.clock import Clock
from odf_common.ports.store import CatalogEntry, ObjectKind
from odf_common.service.audit import Audit
from odf_common.service.connections import stores
from odf_common.service.request_reply import Replies
from odf_common.service.settings import Settings
from odf_coordinator.api.bus_handlers import Commands
from odf_sync.http.account_routes import AccountRoutes
from odf_sync.http.authorization import Authorizer
from odf_sync.http.endpoints import application
from odf_sync.http.object_uploads import OpenPushes
from odf_sync.http.read_routes import ReadRoutes
from odf_sync.http.simple_protocol import SimpleProtocol
from odf_sync.http.smart_routes import SmartProtocol
from odf_sync.repositories.http_dataset import HttpDataset
from odf_sync.transfer.local_copy import Step
from odf_sync.transfer.pull_dataset import pull
from odf_sync.transfer.push_dataset import push
from odf_sync.transfer.push_source import Push
from odf_testing.clocks import TickingClock
from odf_testing.coordinator import Coordinator
from odf_testing.http import running
from odf_testing.recorded_transfers import Pool, dataset_of
from odf_testing.story import root

CITIES: Final = root("cities", ["event_time TIMESTAMP", "city STRING"])


def open_exchanges(patch: pytest.MonkeyPatch) -> None:
    """Let pulls by `odf+http` open exchanges with nodes of this kind, as with one that gives URLs of its bucket."""
    patch.setattr(HttpDataset, "gives_urls", property(lambda _: True, lambda *_: None), raising=False)


class SyncNode:
    """A node in one process."""

    def __init__(self, home: Path, settings: Settings | None = None, clock: Clock | None = None) -> None:
        """Use a home, and the store that the settings name; by default with a clock of its own."""
        settings = settings or Settings(home=home)
        self.coordinator = Coordinator(home=home, stores=stores(settings), clock=clock or TickingClock())
        self.blobs, self.refs = self.coordinator.blobs, self.coordinator.refs
        self.catalog = self.coordinator.catalog
        self._commands = Commands(
            committer=self.coordinator.committer, importer=self.coordinator.importer
        ).handle
        self.settings = settings
        self.datasets = self.coordinator.node_datasets
        self.replies = cast("Replies", self)

    def request(self, topic: str, dataset: DatasetId, body: Body, *, timeout: float) -> Envelope | None:
        """Reply like the coordinator over the bus."""
        del topic, timeout
        (outgoing,) = self._commands(envelope(dataset, body))
        return outgoing.envelope

    def hold(self, alias: str, head: Multihash, pool: Pool) -> None:
        """Add a dataset, with all of its objects that are in the pool."""
        chain = pool.chain(head)
        dataset = dataset_of(chain)
        for name, raw in chain:
            self.blobs.put(dataset, ObjectKind.BLOCK, name, raw)
        for name, content in pool.objects.items():
            if any(name.raw in raw for _, raw in chain):
                self.blobs.put(dataset, ObjectKind.DATA, name, content)
        self.refs.compare_and_set(dataset, expected=self.refs.head(dataset), new=head)
        if self.catalog.by_alias(alias) is None:
            self.catalog.add(CatalogEntry(alias=alias, dataset_id=dataset))

    def add_cities(self, *batches: list[str]) -> None:
        """Create the dataset `cities`, and push the names of each batch a minute after the one before."""
        self.coordinator.add(yaml.safe_dump(CITIES))
        for minute, names in enumerate(batches):
            self.coordinator.push("cities", *names, minute=minute)

    def head(self, alias: str) -> Multihash | None:
        entry = self.catalog.by_alias(alias)
        return None if entry is None else self.refs.head(entry.dataset_id)

    def add_block(
        self, alias: str, event: MetadataEvent, *, version: int = 3, system_time: Timestamp | None = None
    ) -> None:
        """Add a block to a chain, as no other node has it; by default with the time of the one before."""
        entry, head = self.catalog.by_alias(alias), self.head(alias)
        assert entry is not None
        assert head is not None
        last = decode_block(self.blobs.read(entry.dataset_id, ObjectKind.BLOCK, head)).block
        block = replace(last, prev_block_hash=head, sequence_number=last.sequence_number + 1, event=event)
        block = block if system_time is None else replace(block, system_time=system_time)
        raw = encode_block(block, version=version)
        self.blobs.put(entry.dataset_id, ObjectKind.BLOCK, block_hash(raw), raw)
        self.refs.compare_and_set(entry.dataset_id, expected=head, new=block_hash(raw))

    def sign(self, alias: str, key: PrivateKey) -> dict[Multihash, bytes]:
        """Sign all blocks of a dataset that have no signature, and return the signatures."""
        entry = self.catalog.by_alias(alias)
        assert entry is not None, alias
        for block in self.blobs.names(entry.dataset_id, ObjectKind.BLOCK):
            signature = encode_signature(sign_block(key, block))
            self.blobs.put(entry.dataset_id, ObjectKind.SIGNATURE, block, signature)
        return self.signatures(alias)

    def signatures(self, alias: str) -> dict[Multihash, bytes]:
        """Return the signatures of a dataset's blocks."""
        entry = self.catalog.by_alias(alias)
        assert entry is not None, alias
        return {
            block: self.blobs.read(entry.dataset_id, ObjectKind.SIGNATURE, block)
            for block in self.blobs.names(entry.dataset_id, ObjectKind.SIGNATURE)
        }

    def content(self, alias: str) -> dict[tuple[ObjectKind, str], bytes]:
        """Return all blocks and objects of a dataset."""
        entry = self.catalog.by_alias(alias)
        assert entry is not None, alias
        return {
            (kind, str(name)): self.blobs.read(entry.dataset_id, kind, name)
            for kind in (ObjectKind.BLOCK, ObjectKind.DATA, ObjectKind.CHECKPOINT)
            for name in self.blobs.names(entry.dataset_id, kind)
        }

    def pull(self, url: str, alias: str, **options: Any) -> list[Step]:
        """Pull with the options of `pull`, and with a `token`."""
        token = options.pop("token", None)
        return list(
            pull(self.datasets, self.settings, url, alias, lambda _: token, replies=self.replies, **options)
        )

    def push(self, dataset: str, target: str, **options: Any) -> list[Step]:
        """Push with the options of `Push`, with a `token`, and with `privacy`."""
        token, privacy = options.pop("token", None), options.pop("privacy", None)
        request = Push(dataset=dataset, target=target, **options)
        return list(push(self.datasets, self.settings, request, lambda _: token, privacy))

    @contextmanager
    def served(
        self, authorizer: Authorizer | None = None, audit: Audit | None = None, proxy: Path | None = None
    ) -> Iterator[str]:
        """Serve the datasets, by default to local programs as their owner; yield the URL of the server.

        With a folder for its files, it is behind a proxy.
        """
        authorizer = authorizer or Authorizer(catalog=self.catalog, local_writers="loopback")
        pushes = OpenPushes()
        rooms = (
            AccountRoutes(authorizer, self.catalog),
            SimpleProtocol(self.datasets, self.settings.home, pushes),
            SmartProtocol(self.datasets, self.settings, self.replies, authorizer, pushes),
            ReadRoutes(self.datasets),
        )
        served = tuple(one for room in rooms for one in room.endpoints())
        app = application(authorizer, served, audit=audit)
        with running(app, proxy) as base:
            yield base
