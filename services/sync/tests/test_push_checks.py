"""A server's checks of a node that pushes or pulls: each one separately."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import pytest
import urllib3
from aiohttp.test_utils import make_mocked_request
from odf_testing.builders import AChain, a_chain, a_dataset, a_hash, a_seed
from odf_testing.http import running
from odf_testing.memory_store import MemoryBlobStore
from odf_testing.sync_node import SyncNode

from odf_common.chain.walk import ChainBroken
from odf_common.codec.flatbuffers import block_hash
from odf_common.errors import HeadMoved, InvalidInput
from odf_common.hashing.multihash import Multihash, physical_hash_of
from odf_common.metadata.events import DatasetKind, Seed, SetInfo
from odf_common.ports.store import BlobStore, CatalogEntry, ObjectKind
from odf_sync.access.rules import Action
from odf_sync.http import serve_pull
from odf_sync.http.authorization import Authorizer
from odf_sync.http.endpoints import application
from odf_sync.http.object_uploads import LINGERING_SECONDS, OpenPushes
from odf_sync.http.serve_pull import PullSource, large_lists
from odf_sync.http.serve_push import PushTarget, _ReceivedPush, _unpack
from odf_sync.http.simple_protocol import SimpleProtocol
from odf_sync.smart import messages as msg
from odf_sync.smart.archive import Range, SpooledBlocks, write_archive
from odf_sync.smart.channel import LargeMessages
from odf_sync.smart.connection import connect
from odf_sync.smart.exchange import PUSH, TransferRefused
from odf_sync.transfer.accept_push import Acceptance, PushedChain
from odf_sync.transfer.partial_files import own_partial_file
from odf_sync.transfer.push_source import OFFSET

CONTENT = b"records"


def a_target(
    node: SyncNode, *, entry: CatalogEntry | None, head: Multihash | None = None, **callbacks: object
) -> PushTarget:
    """Return the target of a push to `cities`, whose other callbacks are not called."""
    unused = dict.fromkeys(("creating", "may_replace", "may_find", "require_allowed"))
    return PushTarget(
        large=LargeMessages(),
        held=LargeMessages(),
        decoding=nullcontext(),
        datasets=node.datasets,
        home=node.settings.home,
        public_url=None,
        replies=node.replies,
        alias="cities",
        entry=entry,
        head=head,
        pushes=OpenPushes(),
        **cast("dict[str, Any]", unused | callbacks),
    )


def spooled(blocks: Mapping[Multihash, bytes]) -> SpooledBlocks:
    return SpooledBlocks(BytesIO(), ((name, [raw], b"") for name, raw in blocks.items()))


@pytest.fixture
def node(tmp_path: Path) -> SyncNode:
    return SyncNode(tmp_path / "there")


def held(node: SyncNode, *chains: AChain) -> CatalogEntry:
    """Return a dataset with the head of the first chain, and the blocks of all."""
    entry = CatalogEntry(alias="cities", dataset_id=chains[0].state.dataset_id)
    for one in (block for chain in chains for block in chain.blocks):
        node.blobs.put(entry.dataset_id, ObjectKind.BLOCK, one.hash, one.raw)
    node.refs.compare_and_set(entry.dataset_id, expected=None, new=chains[0].state.head)
    node.catalog.add(entry)
    return entry


@pytest.mark.parametrize("kind", [ObjectKind.DATA, ObjectKind.CHECKPOINT])
def test_an_object_is_stored_under_its_own_hash_only(node: SyncNode, kind: ObjectKind) -> None:
    node.add_cities()
    (dataset,) = (one.dataset_id for one in node.catalog.entries())
    right, wrong = physical_hash_of(CONTENT), a_hash("other")
    with node.served() as base:
        answers = [
            urllib3.request("PUT", f"{base}/cities/{kind.value}/{name}", body=CONTENT)
            for name in (wrong, right)
        ]
    assert [one.status for one in answers] == [400, 200]
    assert answers[0].json() == {"message": f"the body hashes to {right}, not to {wrong}"}
    assert not node.blobs.has(dataset, kind, wrong)
    assert node.blobs.read(dataset, kind, right) == CONTENT


@pytest.mark.parametrize(("count", "planned"), [(1, 0), (1, 2), (2, 1)])
def test_blocks_are_as_many_as_were_planned(count: int, planned: int) -> None:
    with pytest.raises(InvalidInput, match=f"{count} blocks, but {planned} planned"):
        _unpack(
            MemoryBlobStore(),
            msg.BlocksBatch(num_blocks=count, payload=b""),
            msg.TransferPlan(num_blocks=planned),
        )


def test_a_push_of_no_blocks_brings_none() -> None:
    with _unpack(MemoryBlobStore(), msg.BlocksBatch(num_blocks=0, payload=b""), msg.TransferPlan()) as blocks:
        assert dict(blocks) == {}
    packed = BytesIO()
    write_archive([(a_hash("block"), b"block")], packed)
    with pytest.raises(InvalidInput, match="more than the 0 blocks announced"):
        _unpack(
            MemoryBlobStore(), msg.BlocksBatch(num_blocks=0, payload=packed.getvalue()), msg.TransferPlan()
        )


@pytest.mark.parametrize(
    "seed",
    [a_seed(DatasetKind.Derivative), a_seed(dataset=a_dataset("another"))],
    ids=["kind", "id"],
)
def test_force_replaces_no_dataset_of_another_id_or_kind(node: SyncNode, seed: Seed) -> None:
    chain = a_chain(a_seed())
    target = a_target(node, entry=held(node, chain), head=chain.state.head)
    assert target.dataset_of(spooled(a_chain(a_seed()).store), is_forced=True) == chain.state.dataset_id
    with pytest.raises(TransferRefused, match="another id or kind"):
        target.dataset_of(spooled(a_chain(seed).store), is_forced=True)


def accept(node: SyncNode, pushed: PushedChain) -> None:
    with Acceptance(node.datasets, pushed) as acceptance:
        acceptance.complete(node.replies)


def test_a_block_that_does_not_match_its_hash_is_not_stored(node: SyncNode) -> None:
    chain, another = a_chain(a_seed()), a_chain(a_seed(), SetInfo(description="other"))
    blocks = {chain.state.head: chain.read(chain.state.head), a_hash("x"): another.blocks[1].raw}
    pushed = PushedChain(alias="cities", head=None, blocks=blocks, is_forced=False)
    with pytest.raises(InvalidInput, match=f"its bytes hash to {block_hash(another.blocks[1].raw)}"):
        accept(node, pushed)
    assert list(node.blobs.names(chain.state.dataset_id, ObjectKind.BLOCK)) == []
    assert node.head("cities") is None


@pytest.mark.parametrize("is_forced", [False, True])
def test_a_commit_since_the_push_began_is_not_replaced(node: SyncNode, *, is_forced: bool) -> None:
    theirs = a_chain(a_seed(), SetInfo(description="theirs"))
    ours = a_chain(a_seed(), SetInfo(description="ours"))
    held(node, theirs)
    begun_at, blocks = ours.blocks[0].hash, {ours.blocks[1].hash: ours.blocks[1].raw}
    pushed = PushedChain(alias="cities", head=begun_at, blocks=blocks, is_forced=is_forced)
    with pytest.raises(HeadMoved) as moved:
        accept(node, pushed)
    assert (moved.value.expected, moved.value.actual) == (str(begun_at), str(theirs.state.head))
    assert node.head("cities") == theirs.state.head


def test_blocks_that_do_not_follow_the_head_replace_it_only_by_force(node: SyncNode) -> None:
    theirs = a_chain(a_seed(), SetInfo(description="theirs"))
    ours = a_chain(a_seed(), SetInfo(description="ours"))
    held(node, theirs)
    pushed = PushedChain(
        alias="cities",
        head=theirs.state.head,
        blocks={ours.blocks[1].hash: ours.blocks[1].raw},
        is_forced=False,
    )
    with pytest.raises(InvalidInput, match=f"they do not follow the head {theirs.state.head}"):
        accept(node, pushed)
    assert node.head("cities") == theirs.state.head


def test_one_archive_is_accepted_per_push_in_progress(node: SyncNode) -> None:
    body = {name: os.urandom(100) for name in "ab"}
    hashes = {name: physical_hash_of(content) for name, content in body.items()}

    def send(base: str, name: str, alias: str = "cities") -> int:
        return urllib3.request("PUT", f"{base}/{alias}/archives/{hashes[name]}", body=body[name]).status

    asked = msg.PushRequest(
        current_head=None,
        transfer_plan=msg.TransferPlan(num_blocks=1),
        force_update_if_diverged=False,
        visibility_for_created_dataset=msg.DatasetVisibility.PRIVATE,
    )
    with node.served() as base:
        assert send(base, "a") == 404
        with connect(f"{base}/Cities/push", PUSH, {}) as connection:
            connection.send(asked)
            connection.expect(msg.PushAccepted)
            question = {"Content-Range": "bytes */100"}
            url = f"{base}/cities/archives/{hashes['a']}"
            assert urllib3.request("PUT", url, body=b"", headers=question).status == 204, "not sent yet"
            assert [send(base, one) for one in "aab"] == [200, 200, 404]
            assert urllib3.request("PUT", url, body=b"", headers=question).status == 200
            assert send(base, "a", "towns") == 404
        assert len([*(node.settings.home / "uploads").iterdir()]) == 1


def test_an_interrupted_push_may_resume_its_archive_for_a_while() -> None:
    now = 0.0
    pushes = OpenPushes(lambda: now)
    with pushes.exchanging("cities"):
        assert pushes.archive_limit("cities", a_hash("a"))
    with pushes.exchanging("cities"):
        pass
    assert [pushes.archive_limit("cities", a_hash(one)) is not None for one in "ab"] == [True, False]
    now += LINGERING_SECONDS
    assert pushes.archive_limit("cities", a_hash("a")) is None
    with pushes.exchanging("Cities"):
        assert pushes.archive_limit("cities", a_hash("b"))


def test_a_client_gets_the_stored_objects_and_the_received_bytes_of_others(node: SyncNode) -> None:
    entry = held(node, a_chain(a_seed()))
    target = a_target(node, entry=entry)
    names = here, begun, new = tuple(physical_hash_of(content) for content in (CONTENT, b"begun", b"new"))
    node.blobs.put(entry.dataset_id, ObjectKind.DATA, here, CONTENT)
    with own_partial_file(target.stored_path(begun).parent, target.stored_path(begun).name) as file:
        assert file is not None
        file.write(b"beg")
    files = tuple(
        msg.ObjectFile(object_type=msg.ObjectType.DATA_SLICE, physical_hash=name, size=7) for name in names
    )
    found = target.uploads(make_mocked_request("GET", "/cities/push"), entry.dataset_id, files)
    first, second, third = found.object_transfer_strategies
    assert (first.push_strategy, first.upload_to) == (msg.PushStrategy.SKIP_UPLOAD, None)
    for one, name, arrived in ((second, begun, ["3"]), (third, new, [])):
        assert one.push_strategy is msg.PushStrategy.HTTP_UPLOAD
        assert one.upload_to is not None
        assert one.upload_to.url.endswith(f"/cities/data/{name}")
        assert [header.value for header in one.upload_to.headers if header.name == OFFSET] == arrived


def test_the_bytes_of_archives_are_those_that_have_arrived_for_a_name(node: SyncNode) -> None:
    target = a_target(node, entry=None)
    begun, other = target.stored_path(a_hash("a")), target.stored_path(a_hash("b"))
    begun.parent.mkdir(parents=True)
    for file in (begun, other):
        file.write_bytes(b"beg")
    with target.pushes.exchanging("cities"), target.pushes.exchanging("cities"):
        assert target.archive_bytes() == 0
        for name in ("a", "c"):  # of the second nothing has arrived
            assert target.pushes.archive_limit("cities", a_hash(name))
        assert target.archive_bytes() == 3


def test_an_arrived_object_is_recorded_for_the_push_that_waits_for_it(node: SyncNode) -> None:
    node.add_cities()
    (dataset,) = (one.dataset_id for one in node.catalog.entries())
    pushes, noted = OpenPushes(), list[tuple[ObjectKind, Multihash]]()
    authorizer = Authorizer(catalog=node.catalog, local_writers="loopback")
    app = application(authorizer, SimpleProtocol(node.datasets, node.settings.home, pushes).endpoints())
    name = physical_hash_of(CONTENT)
    with running(app) as base, pushes.listening(dataset, lambda *key: noted.append(key)):
        assert urllib3.request("PUT", f"{base}/cities/checkpoints/{name}", body=CONTENT).status == 200
    assert noted == [(ObjectKind.CHECKPOINT, name)]


def test_the_file_with_the_blocks_of_a_push_is_closed_at_its_end() -> None:
    file = BytesIO()
    with _ReceivedPush(blocks=SpooledBlocks(file, ()), archive=None):
        assert not file.closed
    assert file.closed


@pytest.fixture
def source(node: SyncNode) -> tuple[PullSource, AChain, Multihash]:
    """Return a dataset, its chain, and a block that is stored, but in no chain of the head."""
    chain = a_chain(a_seed(), *(SetInfo(description=text) for text in "abc"))
    left = a_chain(a_seed(), SetInfo(description="left"))
    entry = held(node, chain, left)
    pulled = PullSource(
        blobs=node.blobs,
        public_url=None,
        dataset=entry.dataset_id,
        head=chain.state.head,
        lists=large_lists(),
    )
    return pulled, chain, left.state.head


def test_only_ranges_of_the_chain_are_sent(source: tuple[PullSource, AChain, Multihash]) -> None:
    served, chain, left = source
    head, first = chain.state.head, chain.blocks[1].hash
    whole = msg.PullRequest(begin_after=None, stop_at=None, force_update_if_diverged=False)
    assert served.range_of(whole) == Range(after=None, head=head)
    assert served.range_of(replace(whole, begin_after=head)) == Range(after=head, head=head)
    assert served.range_of(replace(whole, begin_after=first)) == Range(after=first, head=head)
    assert served.range_of(replace(whole, stop_at=first)) == Range(after=None, head=first)
    for one, why in ((left, "is not in the chain"), (a_hash("x"), "no block")):
        fault = served.range_of(replace(whole, stop_at=one))
        assert isinstance(fault, msg.Internal)
        assert why in fault.error_message
    diverged = replace(whole, begin_after=left)
    assert served.range_of(diverged) == msg.InvalidInterval(head=head, tail=left)
    assert served.range_of(replace(whole, begin_after=head, stop_at=first)) == msg.InvalidInterval(
        head=first, tail=head
    )
    forced = replace(diverged, force_update_if_diverged=True)
    assert served.range_of(forced) == Range(after=None, head=head)


def test_an_answer_to_a_list_that_is_not_read_ends_and_makes_room(
    source: tuple[PullSource, AChain, Multihash], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unread:
        async def send_downloads(self, parts: object) -> None:
            del parts
            await asyncio.Event().wait()

    class Lists:
        has_room = False

        @asynccontextmanager
        async def next(self) -> AsyncIterator[tuple[msg.ObjectFile, ...]]:
            try:
                yield ()
            finally:
                self.has_room = True

    monkeypatch.setattr(serve_pull, "seconds_for", lambda size: size + 0.01)
    lists = Lists()
    with pytest.raises(TimeoutError):
        asyncio.run(
            serve_pull._answer_next(cast("Any", Unread()), source[0], cast("Any", None), cast("Any", lists))
        )
    assert lists.has_room


def test_a_new_dataset_begins_with_its_seed(node: SyncNode) -> None:
    target = a_target(node, entry=None)
    chain = a_chain(a_seed(), SetInfo(description="text"))
    seeded = target.dataset_of(spooled(chain.store), is_forced=False)
    assert seeded == target.require_target(seeded) == chain.state.dataset_id
    headless = {one.hash: one.raw for one in chain.blocks[1:]}
    assert target.dataset_of(spooled(headless), is_forced=False) is None
    with pytest.raises(TransferRefused, match="the first block is not a Seed"):
        target.require_target(None)


def test_an_archive_that_cannot_be_packed_leaves_no_file_open(
    source: tuple[PullSource, AChain, Multihash], monkeypatch: pytest.MonkeyPatch
) -> None:
    files: list[BytesIO] = []

    def spool_file(_: BlobStore) -> BytesIO:
        files.append(BytesIO())
        return files[-1]

    monkeypatch.setattr(serve_pull, "spool_file", spool_file)
    with pytest.raises(ChainBroken):
        source[0].pack(Range(after=None, head=a_hash("none")))
    assert [file.closed for file in files] == [True]


class Noting:
    """The steps at the end of a push, in order."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def await_checks(self) -> None:
        self.order.append("checked")

    def complete(self, _: object, *, creation: str = "") -> None:
        self.order.append(f"completed {creation}".rstrip())

    def require_allowed(self, action: Action) -> None:
        self.order.append(action.value)

    @contextmanager
    def creating(self, _: object, visibility: msg.DatasetVisibility) -> Iterator[str]:
        self.order.append(f"creating {visibility.value}")
        yield "one"


@pytest.mark.parametrize(
    ("is_new", "is_forced", "order"),
    [
        (False, False, ["checked", "create", "completed"]),
        (False, True, ["checked", "create", "manage", "completed"]),
        (True, False, ["checked", "create", "creating private", "completed one"]),
        (True, True, ["checked", "create", "creating private", "completed one"]),
    ],
)
def test_a_caller_has_to_be_allowed_to_push_when_all_is_checked(
    node: SyncNode, *, is_new: bool, is_forced: bool, order: list[str]
) -> None:
    noting, chain = Noting(), a_chain(a_seed())
    entry = None if is_new else held(node, chain)
    target = a_target(node, entry=entry, creating=noting.creating, require_allowed=noting.require_allowed)
    asked = msg.PushRequest(
        transfer_plan=msg.TransferPlan(),
        force_update_if_diverged=is_forced,
        visibility_for_created_dataset=msg.DatasetVisibility.PRIVATE,
    )
    target.complete(cast("Any", noting), chain.state.dataset_id, asked)
    assert [step.lower() for step in noting.order] == order
