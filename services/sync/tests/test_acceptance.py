"""When the objects of a push are checked."""

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from odf_testing.guarded import GuardedSet
from odf_testing.sync_node import SyncNode

from odf_common.chain.walk import blocks_between
from odf_common.codec.flatbuffers import block_hash, decode_block, encode_block
from odf_common.codec.signature import encode_signature
from odf_common.data.schema_evolution import schema_of_event, schema_to_event
from odf_common.errors import AlreadyExists, InvalidInput, OdfError, StorageUnavailable
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.identity.keys import generate, sign_block
from odf_common.metadata.events import AddData, DataSlice, MetadataEvent, SetDataSchema
from odf_common.ports.store import BlobStore, CatalogEntry, ObjectKind, block_reader
from odf_common.resources.registry import ReservedName
from odf_sync.transfer import accept_push, objects
from odf_sync.transfer.accept_push import Acceptance, PushedChain
from odf_sync.transfer.local_copy import LocalCopy
from odf_sync.transfer.objects import ObjectDiffers, RecordsRefused, RemoteObject

WAIT_SECONDS = 10.0
Change = Callable[[MetadataEvent], MetadataEvent]


@pytest.fixture
def here(tmp_path: Path) -> SyncNode:
    """A node with a dataset of two slices."""
    node = SyncNode(tmp_path / "here")
    node.add_cities(["Kyiv"], ["Quito"])
    return node


@pytest.fixture
def there(tmp_path: Path) -> SyncNode:
    return SyncNode(tmp_path / "there")


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> "queue.Queue[Multihash]":
    """Return the names of objects that have been checked."""
    names: queue.Queue[Multihash] = queue.Queue()
    check = objects.check_stored

    def noted(blobs: BlobStore, source: str, dataset: DatasetId, declared: Sequence[RemoteObject]) -> None:
        check(blobs, source, dataset, declared)
        names.put(declared[0].name)

    monkeypatch.setattr(accept_push, "check_stored", noted)
    return names


def parts(node: SyncNode) -> tuple[DatasetId, PushedChain, list[Multihash]]:
    """Return a push of all blocks, and the names of the slices."""
    (dataset,) = (one.dataset_id for one in node.catalog.entries())
    head = node.head("cities")
    assert head is not None
    links = blocks_between(block_reader(node.blobs, dataset), head, None)
    blocks = {name: raw for name, _, raw in links}
    names = sorted(node.blobs.names(dataset, ObjectKind.DATA), key=str)
    return dataset, PushedChain(alias="cities", head=None, blocks=blocks, is_forced=False), names


def send(here: SyncNode, there: SyncNode, dataset: DatasetId, name: Multihash) -> None:
    there.blobs.put(dataset, ObjectKind.DATA, name, here.blobs.read(dataset, ObjectKind.DATA, name))


def test_an_object_is_checked_while_others_arrive_and_only_once(
    here: SyncNode, there: SyncNode, checked: "queue.Queue[Multihash]"
) -> None:
    dataset, chain, (first, second) = parts(here)
    with Acceptance(there.datasets, chain) as acceptance:
        send(here, there, dataset, first)
        acceptance.note_object(ObjectKind.DATA, first)
        assert checked.get(timeout=WAIT_SECONDS) == first
        assert there.head("cities") is None
        send(here, there, dataset, second)
        acceptance.complete(there.replies)
    assert list(checked.queue) == [second]
    assert there.head("cities") == here.head("cities")


def test_a_chain_with_an_object_that_did_not_arrive_is_refused(
    here: SyncNode, there: SyncNode, checked: "queue.Queue[Multihash]"
) -> None:
    dataset, chain, (first, second) = parts(here)
    with Acceptance(there.datasets, chain) as acceptance:
        send(here, there, dataset, first)
        acceptance.note_object(ObjectKind.DATA, first)
        assert checked.get(timeout=WAIT_SECONDS) == first
        with pytest.raises(InvalidInput, match=f"not sent: data/{second}"):
            acceptance.complete(there.replies)
    assert there.head("cities") is None
    assert list(there.blobs.names(dataset, ObjectKind.BLOCK)) == [], "data is stored before blocks"


def test_a_push_of_a_new_dataset_whose_path_is_one_of_resources_is_refused_before_its_objects(
    here: SyncNode, there: SyncNode
) -> None:
    _, chain, _ = parts(here)
    with (
        Acceptance(there.datasets, replace(chain, alias="config/v1alpha1")) as acceptance,
        pytest.raises(ReservedName, match="/config/v1alpha1 is a path of resources"),
    ):
        acceptance.await_checks()


def with_data(change: Callable[[DataSlice], DataSlice]) -> Change:
    """Return a change of what the last slice is declared to be."""

    def changed(event: MetadataEvent) -> MetadataEvent:
        if not isinstance(event, AddData) or event.new_data is None or event.prev_offset is None:
            return event
        return replace(event, new_data=change(event.new_data))

    return changed


def other_hash(data: DataSlice) -> DataSlice:
    return replace(data, logical_hash=Multihash(data.logical_hash.raw[:-1] + b"\0"))


def other_size(data: DataSlice) -> DataSlice:
    return replace(data, size=data.size + 1)


def one_more_record(data: DataSlice) -> DataSlice:
    interval = data.offset_interval
    return replace(data, offset_interval=replace(interval, end=interval.end + 1))


def other_schema(event: MetadataEvent) -> MetadataEvent:
    if not isinstance(event, SetDataSchema):
        return event
    return schema_to_event(schema_of_event(event).append(pa.field("size", pa.int64())))


def redeclared(chain: PushedChain, change: Change) -> PushedChain:
    """Return a chain whose blocks declare other things about the same objects."""
    blocks: dict[Multihash, bytes] = {}
    for block in (decode_block(raw).block for raw in chain.blocks.values()):
        last = next(reversed(blocks), None)
        raw = encode_block(replace(block, event=change(block.event), prev_block_hash=last))
        blocks[block_hash(raw)] = raw
    return replace(chain, blocks=blocks)


@pytest.mark.parametrize(
    ("change", "error", "why"),
    [
        (with_data(other_hash), RecordsRefused, "records hash to"),
        (with_data(other_size), ObjectDiffers, "bytes"),
        (with_data(one_more_record), RecordsRefused, "declared 1–2"),
        (other_schema, RecordsRefused, "columns, but"),
    ],
)
def test_a_slice_that_is_not_as_its_block_declares_is_refused_each_time_the_push_is_completed(
    here: SyncNode, there: SyncNode, change: Change, error: type[OdfError], why: str
) -> None:
    dataset, chain, names = parts(here)
    for name in names:
        send(here, there, dataset, name)
    with Acceptance(there.datasets, redeclared(chain, change)) as acceptance:
        for _ in range(2):
            with pytest.raises(error, match=why):
                acceptance.complete(there.replies)
            assert there.head("cities") is None


def test_blocks_that_could_not_be_stored_are_stored_before_the_head_moves(
    here: SyncNode, there: SyncNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, chain, names = parts(here)
    for name in names:
        send(here, there, dataset, name)

    def full(*_: object) -> None:
        raise StorageUnavailable(file="blocks", why="the disk is full")

    with Acceptance(there.datasets, chain) as acceptance:
        with monkeypatch.context() as patch:
            patch.setattr(there.blobs, "put_all", full)
            with pytest.raises(StorageUnavailable):
                acceptance.complete(there.replies)
        assert there.head("cities") is None
        acceptance.complete(there.replies)
    assert there.head("cities") == here.head("cities")


def test_a_dataset_that_was_renamed_meanwhile_is_not_imported_again(here: SyncNode, there: SyncNode) -> None:
    dataset, chain, names = parts(here)
    there.catalog.add(CatalogEntry(alias="towns", dataset_id=dataset))
    for name in names:
        send(here, there, dataset, name)
    with (
        Acceptance(there.datasets, chain) as acceptance,
        pytest.raises(AlreadyExists, match="under another name"),
    ):
        acceptance.complete(there.replies)
    assert there.catalog.by_alias("cities") is None


@pytest.mark.parametrize("is_forced", [False, True])
def test_a_chain_is_replaced_only_if_that_was_asked_for(
    here: SyncNode, there: SyncNode, monkeypatch: pytest.MonkeyPatch, is_forced: bool
) -> None:
    dataset, chain, names = parts(here)
    for name in names:
        send(here, there, dataset, name)
    copies: list[LocalCopy] = []
    monkeypatch.setattr(accept_push, "commit", lambda *arguments: copies.append(arguments[-1]))
    with Acceptance(there.datasets, replace(chain, is_forced=is_forced)) as acceptance:
        acceptance.complete(there.replies)
    assert [(copy.name, copy.is_forced) for copy in copies] == [("cities", is_forced)]


def test_arriving_objects_are_recorded_by_one_thread_at_a_time(here: SyncNode, there: SyncNode) -> None:
    dataset, chain, names = parts(here)
    with Acceptance(there.datasets, chain) as acceptance:
        acceptance._admitted.result()
        acceptance._arrived = GuardedSet(acceptance._guard)
        for name in names:
            send(here, there, dataset, name)
            acceptance.note_object(ObjectKind.DATA, name)
        acceptance.complete(there.replies)
    assert there.head("cities") == here.head("cities")


def test_objects_that_arrive_before_the_blocks_are_accepted_are_checked_then(
    here: SyncNode, there: SyncNode, checked: "queue.Queue[Multihash]"
) -> None:
    dataset, chain, names = parts(here)
    are_read = threading.Event()

    class Slow(dict[Multihash, bytes]):
        def items(self) -> Any:
            assert are_read.wait(WAIT_SECONDS)
            return super().items()

    with Acceptance(there.datasets, replace(chain, blocks=Slow(chain.blocks))) as acceptance:
        for name in names:
            send(here, there, dataset, name)
            acceptance.note_object(ObjectKind.DATA, name)
        assert checked.empty()
        are_read.set()
        assert {checked.get(timeout=WAIT_SECONDS) for _ in names} == set(names)


def test_an_object_that_arrives_after_the_end_of_the_exchange_is_no_error(
    here: SyncNode, there: SyncNode, checked: "queue.Queue[Multihash]"
) -> None:
    dataset, chain, (first, _) = parts(here)
    with Acceptance(there.datasets, chain) as acceptance:
        acceptance._admitted.result()
    send(here, there, dataset, first)
    acceptance.note_object(ObjectKind.DATA, first)
    assert checked.empty()


def test_the_end_of_an_exchange_does_not_wait_for_a_check(
    here: SyncNode, there: SyncNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes in the server's event loop."""
    has_begun, may_end, has_ended = threading.Event(), threading.Event(), threading.Event()

    def check(*_: object) -> None:
        has_begun.set()
        may_end.wait(WAIT_SECONDS)
        has_ended.set()

    monkeypatch.setattr(accept_push, "check_stored", check)
    dataset, chain, (first, _) = parts(here)
    with Acceptance(there.datasets, chain) as acceptance:
        send(here, there, dataset, first)
        acceptance.note_object(ObjectKind.DATA, first)
        assert has_begun.wait(WAIT_SECONDS)
    assert not has_ended.is_set()
    may_end.set()
    assert has_ended.wait(WAIT_SECONDS)


def test_the_new_name_of_a_dataset_is_not_revealed_to_the_sender(
    here: SyncNode, there: SyncNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, chain, names = parts(here)
    for name in names:
        send(here, there, dataset, name)

    def fail(*_: object) -> None:
        raise AlreadyExists(what="this dataset, locally named secret,")

    monkeypatch.setattr(accept_push, "commit", fail)
    with Acceptance(there.datasets, chain) as acceptance, pytest.raises(AlreadyExists) as refused:
        acceptance.complete(there.replies)
    assert "secret" not in str(refused.value)


def test_signatures_are_stored_before_blocks_and_both_before_the_head_moves(
    here: SyncNode, there: SyncNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, chain, names = parts(here)
    for name in names:
        send(here, there, dataset, name)
    order: list[tuple[str, Multihash | None]] = []
    put_all = there.blobs.put_all

    def put_noted(dataset: DatasetId, kind: ObjectKind, contents: Sequence[tuple[Multihash, bytes]]) -> None:
        order.append((kind.value, there.head("cities")))
        put_all(dataset, kind, contents)

    monkeypatch.setattr(there.blobs, "put_all", put_noted)
    signature = encode_signature(sign_block(generate(), list(chain.blocks)[-1]))
    signed = replace(chain, signature={list(chain.blocks)[-1]: signature}.get)
    with Acceptance(there.datasets, signed) as acceptance:
        acceptance.complete(there.replies)
    assert order[:2] == [("signatures", None), ("blocks", None)]
    assert there.head("cities") == here.head("cities")
