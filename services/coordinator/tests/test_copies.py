"""A dataset without its private key is a copy: it follows its source, and nothing is committed to it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from odf_testing.coordinator import Coordinator

from odf_common.adapters.local.key_files import IMPORTED, NotOwned, mark_imported
from odf_common.codec.envelopes import envelope
from odf_common.codec.flatbuffers import encode_event
from odf_common.codec.times import time_message
from odf_common.dataset.dataset_notes import dropped_blocks, note_drop
from odf_common.errors import NotFound, Refused
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.identity.keys import PrivateKey, generate
from odf_common.metadata.events import SetInfo
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.store import ObjectKind
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_coordinator.api.bus_handlers import Commands
from odf_coordinator.api.grpc_servicer import unheard
from odf_coordinator.catalog.datasets import KeyStore
from odf_coordinator.commit.committer import Committed, Outcome, Refusal
from odf_coordinator.operations.pull import PullProgress
from odf_coordinator.storage import DataDropped, was_dropped

WIDER = ("city STRING", "city STRING, people BIGINT")
WORDS = "cities is a copy; only the node that has the dataset's private key can commit to it"


@pytest.fixture
def key(node: Coordinator, root: str) -> PrivateKey:
    """Have `cities` as after a pull from elsewhere, and return its key."""
    node.add(root)
    node.push("cities", "Oslo")
    known = node.find("cities")
    file = node.home / "keys" / known.id.folder
    made = PrivateKey.from_bytes(file.read_bytes())
    node.references.set("cities@next", "", None)
    for topic in known.entry.push_topics.values():
        node.topics.delete_topic(topic)
    node.catalog.replace(type(known.entry)(alias="cities", dataset_id=known.id))
    node.keys.remove(known.id)
    return made


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize(
    "write",
    [
        lambda node, _: node.editor.commit_event("cities", SetInfo(description="x")),
        lambda node, _: node.editor.commit_event("cities@next", SetInfo(description="x")),
        lambda node, _: node.editor.set_watermark("cities", Timestamp.parse("2030-01-01T00:00:00Z")),
        lambda node, _: node.push("cities", "Rome"),
        lambda node, root: node.add(root.replace(*WIDER), replace=True),
    ],
)
def test_nothing_writes_to_a_copy(
    node: Coordinator, root: str, write: Callable[[Coordinator, str], object]
) -> None:
    before = node.find("cities")

    with pytest.raises(Refused, match=WORDS) as refused:
        write(node, root)

    assert refused.value.reason == "NotOwned"
    assert node.find("cities") == before
    assert node.refs.head(before.id, "next") == before.state.head
    assert set(node.topics.names) == set()


@pytest.mark.usefixtures("key")
def test_a_proposal_from_ingest_is_refused_by_its_own_code(node: Coordinator) -> None:
    state = node.find("cities").state
    body = bus.Propose(
        expected_head=state.head.raw,
        system_time=time_message(node.clock.now()),
        events=[encode_event(SetInfo(description="x"))],
    )
    commands = Commands(committer=node.committer, importer=node.importer)

    (outgoing,) = commands.handle(envelope(state.dataset_id, body))

    assert outgoing.envelope.refused.code == "NotOwned"
    assert outgoing.envelope.refused.text == WORDS


@pytest.mark.usefixtures("key")
def test_a_pull_of_all_skips_copies_and_one_by_name_says_why(node: Coordinator) -> None:
    steps = list(node.puller.pull([], is_all=True, is_recursive=False, is_wanted=lambda: True))
    assert steps[-1].state == "up-to-date"

    steps = list(node.puller.pull(["cities"], is_all=False, is_recursive=False, is_wanted=lambda: True))
    advice = NotOwned(text=WORDS).advice()
    assert "odf key import" in advice
    assert (steps[-1].state, steps[-1].error) == ("failed", f"{WORDS}; {advice}")


def test_a_copy_follows_is_reset_renamed_and_deleted(node: Coordinator, root: str, key: PrivateKey) -> None:
    first = node.find("cities").state.head
    node.keys.save(key)
    node.editor.commit_event("cities@next", SetInfo(description="as it was staged by a pull"))
    node.keys.remove(key.dataset_id)

    assert node.references.fast_forward("cities@next").handle.state.info is not None
    assert node.editor.reset("cities", first).state.head == first
    assert node.add(root)[0].outcome == "unchanged"
    node.names.rename("cities", "towns")
    node.names.delete("towns")
    assert list(node.catalog.entries()) == []


def test_with_its_key_a_copy_is_ours_and_a_pull_gives_it_topics(node: Coordinator, key: PrivateKey) -> None:
    assert unheard(node.find("cities"), node.keys.has) is None
    node.keys.save(key)
    stall = unheard(node.find("cities"), node.keys.has)
    assert stall is not None
    assert stall.reason.endswith("has no topic here: nothing can be published to it")
    assert stall.remedy == "`odf pull cities` creates it"

    steps = list(node.puller.pull(["cities"], is_all=False, is_recursive=False, is_wanted=lambda: True))

    assert steps[-1].state == "up-to-date"
    assert set(node.topics.names) == {"odf.push.cities.default"}
    known = node.find("cities")
    assert known.entry.push_topics == {"default": "odf.push.cities.default"}
    assert isinstance(node.propose(known, node.ingest_events(known, ["Rome"], 1)), Committed)


def test_a_pattern_matches_ours_and_skips_copies(node: Coordinator, root: str, key: PrivateKey) -> None:
    node.add(root.replace("name: cities", "name: cities.ours"))

    def pulled(*refs: str) -> dict[str, str]:
        steps = node.puller.pull(refs, is_all=False, is_recursive=False, is_wanted=lambda: True)
        return {step.alias: step.state for step in steps}

    assert pulled("CITIES%") == {"cities": "up-to-date", "cities.ours": "up-to-date"}
    assert node.ingest.drained == [node.find("cities.ours").id]
    assert pulled("cities.%") == {"cities.ours": "up-to-date"}
    assert pulled("cities%", "cities")["cities"] == "failed", "it was asked for"
    with pytest.raises(NotFound, match="no dataset has a name that matches towns%"):
        pulled("towns%")


def test_a_key_is_removed_before_the_mark_that_it_was_imported_and_both_may_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, key = KeyStore(tmp_path / "keys"), generate()
    dataset, unlink, removed = key.dataset_id, Path.unlink, list[str]()
    keys.save(key)
    mark_imported(keys.folder, dataset)

    def noted(file: Path, *, missing_ok: bool = False) -> None:
        removed.append(file.name)
        unlink(file, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", noted)
    for _ in range(2):
        keys.remove(dataset)
        assert list(keys.folder.iterdir()) == []
    assert removed[:2] == [dataset.folder, f"{dataset.folder}{IMPORTED}"]


KINDS = (ObjectKind.DATA, ObjectKind.CHECKPOINT)
Objects = dict[tuple[ObjectKind, Multihash], bytes]


@pytest.fixture
def source(node: Coordinator, root: str, derivative: str, second: str) -> Coordinator:
    node.engine.version = "one"
    node.add(root, derivative, second)
    for minute, city in enumerate(("Oslo", "Rome", "Lima")):
        node.push("cities", city, minute=minute)
        node.work()
    return node


@pytest.fixture
def copy(tmp_path: Path) -> Coordinator:
    """Another node, without any dataset yet."""
    other = Coordinator(home=tmp_path / "copy")
    other.engine.version = "one"
    return other


def objects(node: Coordinator, dataset: DatasetId) -> Objects:
    return {
        (kind, name): node.blobs.read(dataset, kind, name)
        for kind in KINDS
        for name in node.blobs.names(dataset, kind)
    }


def import_without(
    source: Coordinator, copy: Coordinator, ref: str, *kinds: ObjectKind, is_marked: bool = True
) -> Outcome:
    """Import a chain of which the objects of these kinds are missing."""
    known = source.find(ref)
    for kind in {ObjectKind.BLOCK, *KINDS} - set(kinds):
        for name in source.blobs.names(known.id, kind):
            copy.blobs.put(known.id, kind, name, source.blobs.read(known.id, kind, name))
    if is_marked:
        note_drop(copy.blobs, known.id, known.state.head)
    return copy.importer.import_chain(known.id, expected_head=None, new_head=known.state.head, alias=ref)


def pull(node: Coordinator, *refs: str, is_recursive: bool = False) -> dict[str, PullProgress]:
    steps = node.puller.pull(refs, is_all=False, is_recursive=is_recursive, is_wanted=lambda: True)
    return {one.alias: one for one in steps}


def test_a_derivative_is_imported_without_data_only_if_that_is_marked(
    source: Coordinator, copy: Coordinator
) -> None:
    refused = import_without(source, copy, "cities.copy", *KINDS, is_marked=False)

    assert isinstance(refused, Refusal)
    assert refused.code == "ObjectMissing"
    imported = import_without(source, copy, "cities.copy", *KINDS)
    assert isinstance(imported, Committed)
    assert imported.state == source.find("cities.copy").state
    assert was_dropped(copy.datasets, copy.find("cities.copy"))


def test_a_root_without_data_is_refused_even_if_it_is_marked(source: Coordinator, copy: Coordinator) -> None:
    refused = import_without(source, copy, "cities", *KINDS)

    assert isinstance(refused, Refusal)
    assert refused.code == "ObjectMissing"
    assert copy.catalog.by_alias("cities") is None


@pytest.mark.parametrize("missing", [KINDS, KINDS[:1], KINDS[1:]], ids=["all", "slices", "checkpoints"])
def test_the_data_of_a_copy_is_computed_bit_for_bit(
    source: Coordinator, copy: Coordinator, missing: tuple[ObjectKind, ...]
) -> None:
    import_without(source, copy, "cities")
    import_without(source, copy, "cities.copy", *missing)
    known = copy.find("cities.copy")

    pulled = pull(copy, "cities.copy")["cities.copy"]

    assert (pulled.state, pulled.error, pulled.head) == ("rebuilt", "", known.state.head)
    assert objects(copy, known.id) == objects(source, known.id)
    assert dropped_blocks(copy.blobs, known.id) is None
    assert "is a copy" in pull(copy, "cities.copy")["cities.copy"].error, "nothing is left to do here"


def test_inputs_that_are_copies_without_data_are_computed_first(
    source: Coordinator, copy: Coordinator
) -> None:
    import_without(source, copy, "cities")
    for ref in ("cities.copy", "copy.copy"):
        import_without(source, copy, ref, *KINDS)
    with pytest.raises(DataDropped, match=r"`odf pull cities\.copy`"):
        copy.record_reader.tail("cities.copy", 1)
    assert "`odf pull cities.copy` recomputes it" in pull(copy, "copy.copy")["copy.copy"].error

    pulled = pull(copy, "copy.copy", "cities.copy")

    assert [pulled[ref].state for ref in ("cities.copy", "copy.copy")] == ["rebuilt", "rebuilt"]
    for ref in ("cities.copy", "copy.copy"):
        assert objects(copy, copy.find(ref).id) == objects(source, copy.find(ref).id)


def test_inputs_that_are_missing_are_named(source: Coordinator, copy: Coordinator) -> None:
    cities = source.find("cities").id
    import_without(source, copy, "cities.copy", *KINDS)

    failed = pull(copy, "cities.copy")["cities.copy"]

    assert failed.state == "failed"
    assert f"this node lacks inputs, or blocks of them: {cities} (Cities)" in failed.error
    assert "`odf pull URL`, then `odf pull cities.copy`" in failed.error
    import_without(source, copy, "cities")
    assert pull(copy, "cities.copy")["cities.copy"].state == "rebuilt"


def test_an_input_that_was_pulled_before_its_last_blocks_is_named(
    source: Coordinator, copy: Coordinator
) -> None:
    import_without(source, copy, "cities")
    known = source.find("cities")
    copy.blobs.remove(known.id, ObjectKind.BLOCK, [known.state.head])
    import_without(source, copy, "cities.copy", *KINDS)

    assert f"blocks of them: {known.id}" in pull(copy, "cities.copy")["cities.copy"].error


def test_a_copy_of_another_engine_waits_for_that_engine(source: Coordinator, copy: Coordinator) -> None:
    import_without(source, copy, "cities")
    import_without(source, copy, "cities.copy", *KINDS)
    copy.engine.version = "two"

    failed = pull(copy, "cities.copy")["cities.copy"]

    assert failed.error.endswith("is not installed: install it and pull again"), (
        "the chain is not ours to reset"
    )
