"""A pull from its first step to the commit by a real coordinator: order of writes, hostile copies, lost replies."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest
from odf_testing.builders import (
    AChain,
    a_block,
    a_chain,
    a_dataset,
    a_derivative,
    a_step,
    a_time,
)
from odf_testing.coordinator import Coordinator

from odf_common.adapters.local.repositories import LocalRepositories
from odf_common.codec.envelopes import Body, Envelope, envelope
from odf_common.codec.flatbuffers import block_hash, encode_block
from odf_common.dataset.dataset_notes import RemoteAliases, remote_aliases
from odf_common.errors import (
    AlreadyExists,
    ChainRuleViolated,
    HeadMoved,
    InvalidInput,
    OdfError,
    Refused,
    Unavailable,
)
from odf_common.hashing.multihash import Multihash, physical_hash_of
from odf_common.identity.dataset_refs import DatasetId, Name
from odf_common.metadata.events import AddData, Checkpoint, ExecuteTransform, SetInfo
from odf_common.ports.store import CatalogEntry, ObjectKind
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_common.service.request_reply import Replies
from odf_common.service.settings import Settings
from odf_coordinator.api.bus_handlers import Commands
from odf_sync.repositories import RemoteFolder, folder
from odf_sync.transfer import remote_chain
from odf_sync.transfer.local_copy import MAX_REQUEST_ATTEMPTS, Step
from odf_sync.transfer.objects import ObjectDiffers, RecordsRefused
from odf_sync.transfer.pull_dataset import pull
from odf_sync.transfer.remote_chain import RemoteBlock

VECTOR = Path(__file__).parents[3] / "tests" / "vectors" / "datasets" / "cities.population"
Write = tuple[ObjectKind, Multihash]


class Node:
    """A node that pulls: its requests to the coordinator, what it has stored, and which messages are lost."""

    def __init__(self, home: Path, *, is_durable: bool) -> None:
        self.home = home
        self.coordinator = Coordinator(home=home, is_durable=is_durable)
        self.commands = Commands(
            committer=self.coordinator.committer, importer=self.coordinator.importer
        ).handle
        self.refs, self.catalog, self.blobs = (
            self.coordinator.refs,
            self.coordinator.catalog,
            self.coordinator.blobs,
        )
        self.asked: list[bus.ImportChain] = []
        self.answer: Body | None = None  # instead of the coordinator's
        self.lost_commands = 0
        self.lost_answers = 0
        self.writes: list[Write] = []
        self.before_commit: list[Write] = []
        self._note_writes()

    def _note_writes(self) -> None:
        put, put_all, put_file = self.blobs.put, self.blobs.put_all, self.blobs.put_file

        def noted(dataset: DatasetId, kind: ObjectKind, name: Multihash, content: bytes) -> None:
            self._note(kind, name)
            put(dataset, kind, name, content)

        def noted_all(
            dataset: DatasetId, kind: ObjectKind, contents: Sequence[tuple[Multihash, bytes]]
        ) -> None:
            for name, _ in contents:
                self._note(kind, name)
            put_all(dataset, kind, contents)

        def noted_file(dataset: DatasetId, kind: ObjectKind, name: Multihash, file: Path) -> None:
            self._note(kind, name)
            put_file(dataset, kind, name, file)

        self.blobs.put, self.blobs.put_all = noted, noted_all  # type: ignore[method-assign]
        self.blobs.put_file = noted_file  # type: ignore[method-assign]

    def _note(self, kind: ObjectKind, name: Multihash) -> None:
        if (kind, name) not in self.writes:  # a store may take a file as bytes
            self.writes.append((kind, name))

    def request(self, topic: str, dataset: DatasetId, body: Body, *, timeout: float) -> Envelope | None:
        assert isinstance(body, bus.ImportChain)
        self.asked.append(body)
        self.before_commit = list(self.writes)
        if self.lost_commands:
            self.lost_commands -= 1
            return None
        if self.answer is not None:
            return envelope(dataset, self.answer)
        (outgoing,) = self.commands(envelope(dataset, body))
        if self.lost_answers:
            self.lost_answers -= 1
            return None
        return outgoing.envelope

    def pulling(self, url: str, alias: str = "cities", *, trusts_records: bool = False) -> Iterator[Step]:
        datasets, settings = self.coordinator.node_datasets, Settings(home=self.home)
        replies = cast("Replies", self)
        return pull(datasets, settings, url, alias, replies=replies, trusts_records=trusts_records)

    def pull(self, url: str, alias: str = "cities", *, trusts_records: bool = False) -> list[Step]:
        return list(self.pulling(url, alias, trusts_records=trusts_records))

    def stored(self, dataset: DatasetId, kind: ObjectKind) -> set[str]:
        return {str(name) for name in self.blobs.names(dataset, kind)}


@pytest.fixture(params=["memory", "files"])
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Node:
    return Node(tmp_path / "home", is_durable=request.param == "files")


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A repository with blocks and slices that another implementation wrote."""
    folder = tmp_path / "there" / "cities"
    shutil.copytree(VECTOR, folder)
    return folder


def blocks_of(folder: Path) -> list[RemoteBlock]:
    remote = RemoteFolder(folder.as_uri())
    return list(remote_chain.missing_blocks(remote, remote.head(), remote.block, None).blocks)


def dataset_of(folder: Path) -> DatasetId:
    return remote_chain.admit_all(None, blocks_of(folder)).dataset_id


def names_in(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def move_head(folder: Path, block: Multihash) -> None:
    (folder / "refs" / "head").write_text(str(block))


def published(folder: Path, chain: AChain, *hostile: bytes) -> str:
    """Write a chain and unchecked blocks to a folder; the last one is its head."""
    raws = [*chain.store.values(), *hostile]
    for kind in ("blocks", "refs", "data", "checkpoints"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    for raw in raws:
        (folder / "blocks" / str(block_hash(raw))).write_bytes(raw)
    move_head(folder, block_hash(raws[-1]))
    return folder.as_uri()


def assert_untouched(node: Node) -> None:
    """Nothing was stored, and the coordinator got no request."""
    assert (node.writes, node.asked) == ([], [])


def test_a_new_dataset_is_copied_whole(node: Node, there: Path) -> None:
    blocks = blocks_of(there)
    state = remote_chain.admit_all(None, blocks)

    *steps, last = node.pull(there.as_uri())

    objects = ["objects"] * len(names_in(there / "data"))
    assert [step.state for step in steps] == ["comparing", "blocks", *objects, "committing"]
    assert [(step.done, step.total) for step in steps[2:-1]] == [(1, 3), (2, 3), (3, 3)]
    assert last == Step(
        alias="cities",
        state="updated",
        head=state.head,
        new_blocks=len(blocks),
        new_records=state.next_offset,
    )
    assert node.refs.head(state.dataset_id) == state.head
    assert node.catalog.by_alias("cities") == CatalogEntry(alias="cities", dataset_id=state.dataset_id)
    assert node.stored(state.dataset_id, ObjectKind.BLOCK) == names_in(there / "blocks")
    assert node.stored(state.dataset_id, ObjectKind.DATA) == names_in(there / "data")


def test_objects_are_stored_before_blocks_and_all_before_the_command_to_the_coordinator(
    node: Node, there: Path
) -> None:
    node.pull(there.as_uri())

    kinds = [kind for kind, _ in node.before_commit]
    assert kinds == sorted(kinds, key=lambda kind: kind is ObjectKind.BLOCK)
    assert node.before_commit == node.writes
    assert {str(name) for _, name in node.before_commit} == names_in(there / "blocks") | names_in(
        there / "data"
    )


def test_an_interrupted_pull_resumes_with_the_stored_objects(node: Node, there: Path) -> None:
    node.lost_commands = MAX_REQUEST_ATTEMPTS
    with pytest.raises(Unavailable):
        node.pull(there.as_uri())
    node.writes.clear()

    assert node.pull(there.as_uri())[-1].state == "updated"

    dataset = dataset_of(there)
    assert {kind for kind, _ in node.writes} == {ObjectKind.BLOCK}
    assert node.stored(dataset, ObjectKind.DATA) == names_in(there / "data")


def test_an_update_fetches_new_blocks_and_expects_the_local_head(node: Node, there: Path) -> None:
    blocks = blocks_of(there)
    before = remote_chain.admit_all(None, blocks[:-1])
    move_head(there, before.head)
    node.pull(there.as_uri())
    node.writes.clear()
    move_head(there, blocks[-1].hash)

    *_, last = node.pull(there.as_uri())

    after = remote_chain.admit_all(before, blocks[-1:])
    records = after.next_offset - before.next_offset
    assert last == Step(alias="cities", state="updated", head=after.head, new_blocks=1, new_records=records)
    assert node.asked[-1].expected_head == before.head.raw
    assert [name for kind, name in node.writes if kind is ObjectKind.BLOCK] == [after.head]


def test_a_pull_into_a_reference_leaves_the_head_unchanged(node: Node, there: Path) -> None:
    blocks = blocks_of(there)
    move_head(there, blocks[-2].hash)
    node.pull(there.as_uri())
    move_head(there, blocks[-1].hash)

    *_, last = node.pull(there.as_uri(), "cities@theirs")

    dataset = dataset_of(there)
    assert (last.state, last.head) == ("updated", blocks[-1].hash)
    assert node.refs.head(dataset, "theirs") == blocks[-1].hash
    assert node.refs.head(dataset) == blocks[-2].hash


def test_checkpoints_are_copied_with_their_chain(node: Node, tmp_path: Path) -> None:
    content = b"a checkpoint"
    chain = a_derivative(a_dataset("input"))
    made = Checkpoint(physical_hash=physical_hash_of(content), size=len(content))
    step = a_step(chain.state, a_dataset("input"), "block", 3)
    chain.add(ExecuteTransform(query_inputs=(step,), new_checkpoint=made))
    url = published(tmp_path / "hourly", chain)
    (tmp_path / "hourly" / "checkpoints" / str(made.physical_hash)).write_bytes(content)

    *_, last = node.pull(url, "hourly")

    assert last.state == "updated"
    stored = node.blobs.read(chain.state.dataset_id, ObjectKind.CHECKPOINT, made.physical_hash)
    assert stored == content


def test_a_chain_that_breaks_a_rule_is_refused_before_anything_is_stored(node: Node, tmp_path: Path) -> None:
    chain = a_chain()
    late = a_block(chain.state, SetInfo(description="x"), system_time=a_time(-1))

    with pytest.raises(ChainRuleViolated) as refused:
        node.pull(published(tmp_path / "cities", chain, encode_block(late, 3)))

    assert refused.value.rule == "system_time_never_decreases"
    assert_untouched(node)


def flip_last(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1] + b"\0")


def append_byte(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\0")


@pytest.mark.parametrize(
    ("damage", "error"),
    [(flip_last, ObjectDiffers), (append_byte, InvalidInput), (Path.unlink, OdfError)],
)
def test_no_block_is_stored_of_a_chain_with_a_bad_object(
    node: Node, there: Path, damage: Callable[[Path], None], error: type[OdfError]
) -> None:
    damage(max((there / "data").iterdir()))

    with pytest.raises(error):
        node.pull(there.as_uri())

    assert node.asked == []
    assert [name for kind, name in node.writes if kind is ObjectKind.BLOCK] == []


def test_records_that_are_not_as_declared_are_not_committed(node: Node, there: Path) -> None:
    (first, *_) = [
        event for block in blocks_of(there) if isinstance(event := block.decoded.block.event, AddData)
    ]
    assert first.new_data is not None
    chain = a_chain()  # its schema has other columns than the slice
    folder = there.parent / "others"
    url = published(folder, chain, encode_block(a_block(chain.state, first), 3))
    shutil.copy(there / "data" / str(first.new_data.physical_hash), folder / "data")

    with pytest.raises(RecordsRefused):
        node.pull(url)

    assert_untouched(node)
    assert node.pull(url, trusts_records=True)[-1].state == "updated"


def test_the_local_name_of_another_dataset_is_not_taken(node: Node, there: Path) -> None:
    other = a_chain()
    for block in other.blocks:
        node.coordinator.blobs.put(other.state.dataset_id, ObjectKind.BLOCK, block.hash, block.raw)
    node.writes.clear()
    node.catalog.add(CatalogEntry(alias="Cities", dataset_id=other.state.dataset_id))

    with pytest.raises(AlreadyExists, match="another dataset named cities"):
        node.pull(there.as_uri())

    assert_untouched(node)


def test_a_dataset_has_one_local_name(node: Node, there: Path) -> None:
    node.pull(there.as_uri())
    node.writes.clear()
    node.asked.clear()

    with pytest.raises(AlreadyExists, match="named cities"):
        node.pull(there.as_uri(), "towns")

    assert_untouched(node)
    assert node.catalog.by_alias("towns") is None


@pytest.mark.parametrize(("commands", "answers", "asked"), [(0, 1, 1), (2, 0, 3), (1, 1, 2)])
def test_a_lost_command_is_sent_again_and_a_lost_reply_is_detected_by_the_head(
    node: Node, there: Path, commands: int, answers: int, asked: int
) -> None:
    node.lost_commands, node.lost_answers = commands, answers

    *_, last = node.pull(there.as_uri())

    assert last.state == "updated"
    assert node.refs.head(dataset_of(there)) == last.head
    assert len(node.asked) == asked


def test_a_coordinator_that_never_answers_is_unavailable(node: Node, there: Path) -> None:
    node.lost_commands = MAX_REQUEST_ATTEMPTS

    with pytest.raises(Unavailable, match="to the import"):
        node.pull(there.as_uri())

    assert node.refs.head(dataset_of(there)) is None


def test_a_copy_that_is_renamed_while_it_is_updated_is_updated(
    node: Node, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = blocks_of(there)
    move_head(there, blocks[-2].hash)
    node.pull(there.as_uri())
    move_head(there, blocks[-1].hash)
    ask = node.request

    def rename_and_ask(topic: str, dataset: DatasetId, body: Body, *, timeout: float) -> Envelope | None:
        node.catalog.rename("cities", CatalogEntry(alias="towns", dataset_id=dataset))
        return ask(topic, dataset, body, timeout=timeout)

    monkeypatch.setattr(node, "request", rename_and_ask)
    assert node.pull(there.as_uri())[-1].state == "updated"
    assert node.refs.head(dataset_of(there)) == blocks[-1].hash


def test_a_copy_that_is_renamed_while_its_objects_arrive_is_not_committed(node: Node, there: Path) -> None:
    blocks, dataset = blocks_of(there), dataset_of(there)
    move_head(there, blocks[-2].hash)
    node.pull(there.as_uri())
    node.asked.clear()
    move_head(there, blocks[-1].hash)

    steps = node.pulling(there.as_uri())
    assert [next(steps).state for _ in range(3)] == ["comparing", "blocks", "objects"]
    node.catalog.rename("cities", CatalogEntry(alias="towns", dataset_id=dataset))
    with pytest.raises(AlreadyExists, match="locally named towns"):
        list(steps)

    assert (node.asked, node.refs.head(dataset)) == ([], blocks[-2].hash)


def test_a_refusal_is_reported_with_its_reason(node: Node, there: Path) -> None:
    node.answer = bus.Refused(code="ChainRuleViolated", text="offsets have a gap")

    with pytest.raises(Refused, match="offsets have a gap") as refused:
        node.pull(there.as_uri())

    assert refused.value.reason == "ChainRuleViolated"


def test_a_pull_that_was_overtaken_reports_the_head(node: Node, there: Path) -> None:
    actual = physical_hash_of(b"another block")
    node.answer = bus.HeadMoved(head=actual.raw)

    with pytest.raises(HeadMoved) as moved:
        node.pull(there.as_uri())

    assert (moved.value.expected, moved.value.actual) == (str(None), str(actual))


@pytest.mark.parametrize("limit", ["BYTES_LIMIT", "COUNT_LIMIT"])
def test_a_chain_that_is_too_long_is_refused(
    node: Node, there: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    sizes = [file.stat().st_size for file in (there / "blocks").iterdir()]
    most, what = (sum(sizes), "bytes of blocks") if limit == "BYTES_LIMIT" else (len(sizes), "blocks")
    monkeypatch.setattr(remote_chain, limit, most - 1)
    with pytest.raises(InvalidInput, match=f"more than {most - 1} {what}"):
        node.pull(there.as_uri())
    assert_untouched(node)

    monkeypatch.setattr(remote_chain, limit, most)
    assert node.pull(there.as_uri())[-1].state == "updated"


def test_a_block_of_too_many_bytes_is_refused(
    node: Node, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = max(file.stat().st_size for file in (there / "blocks").iterdir())
    monkeypatch.setattr(folder, "BLOCK_LIMIT", size - 1)
    with pytest.raises(InvalidInput, match=f"longer than {size - 1} bytes"):
        node.pull(there.as_uri())
    assert_untouched(node)

    monkeypatch.setattr(folder, "BLOCK_LIMIT", size)
    assert node.pull(there.as_uri())[-1].state == "updated"


def test_a_new_copy_remembers_its_source_and_an_update_adds_none(node: Node, there: Path) -> None:
    blocks = blocks_of(there)
    move_head(there, blocks[-2].hash)
    node.pull(there.as_uri())
    expected = RemoteAliases(pull=(there.as_uri(),))
    assert remote_aliases(node.blobs, dataset_of(there)) == expected

    moved = there.rename(there.with_name("moved"))
    move_head(moved, blocks[-1].hash)
    node.pull(moved.as_uri())
    assert remote_aliases(node.blobs, dataset_of(moved)) == expected


def test_a_dataset_of_a_repository_is_pulled_by_its_name_in_it(node: Node, there: Path) -> None:
    LocalRepositories(node.home).add(Name("shop"), there.parent.as_uri())
    assert node.pull("shop/cities", "")[-1].alias == "cities"
    assert remote_aliases(node.blobs, dataset_of(there)).pull == ("shop/cities",)


def test_a_dataset_that_is_named_by_its_id_has_to_be_that_one(node: Node, there: Path) -> None:
    LocalRepositories(node.home).add(Name("shop"), there.parent.as_uri())
    dataset, other = dataset_of(there), a_dataset("other")
    renamed = there.rename(there.with_name(other.folder))
    with pytest.raises(InvalidInput, match=f"expected {other}, but found {dataset}"):
        node.pull(f"shop/{other}")
    assert_untouched(node)

    renamed.rename(there.with_name(dataset.folder))
    assert node.pull(f"shop/{dataset}")[-1].state == "updated"
    assert node.pull(f"shop/{dataset}", "")[-1].alias == "cities", "it is known by its id"


def test_another_dataset_with_the_name_is_not_requested(node: Node, there: Path) -> None:
    node.pull(there.as_uri())
    LocalRepositories(node.home).add(Name("shop"), (there.parent / "none").as_uri())
    with pytest.raises(AlreadyExists, match="another dataset named cities"):
        node.pull(f"shop/{a_dataset('other')}", "cities")
