"""Who sends a chain does not decide what this node runs: transforms and sources of datasets whose keys it has."""

from dataclasses import replace

import pytest
from odf_testing.builders import (
    a_block,
    a_polling_source,
    a_push_source,
    a_query,
    a_transform,
)
from odf_testing.coordinator import Coordinator, forced, imported, refused, stored

from odf_common.adapters.local.key_files import dataset_key
from odf_common.codec.flatbuffers import (
    BLOCK_KIND,
    Manifest,
    block_hash,
    encode_message,
)
from odf_common.codec.signature import encode_signature
from odf_common.dataset.node_datasets import StoredDataset
from odf_common.dataset.signature_check import SignatureStatus, check_signature, stored_signature
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import HEAD
from odf_common.identity.keys import SignerId, generate, sign_block
from odf_common.metadata.events import (
    AddData,
    DisablePollingSource,
    DisablePushSource,
    KnownEvent,
    MergeStrategyLedger,
    SetInfo,
    SqlQueryStep,
)
from odf_common.ports.store import ObjectKind
from odf_coordinator.catalog.datasets import DatasetHandle, OwnershipCheck
from odf_coordinator.commit.committer import Committed, Committer, Outcome, Overtaken, Refusal


@pytest.fixture
def cities(node: Coordinator, root: str) -> DatasetHandle:
    node.add(root)
    return node.push("cities", "Oslo")


@pytest.mark.parametrize(
    ("event", "what"),
    [
        (a_push_source("second"), "the push sources"),
        (DisablePushSource(source_name="default"), "the push sources"),
    ],
)
@pytest.mark.parametrize("is_forced", [False, True])
def test_the_sender_of_a_chain_does_not_decide_what_this_node_runs(
    node: Coordinator, cities: DatasetHandle, event: KnownEvent, what: str, is_forced: bool
) -> None:
    after = stored(node, cities.state, SetInfo(description="x"), event)
    outcome = node.importer.import_chain(
        cities.id, expected_head=cities.state.head, new_head=after.head, alias="", is_forced=is_forced
    )
    text = refused(node, cities, outcome)
    assert text.startswith(f"only the owner may change {what}; to accept it")
    assert "`odf ref fast-forward DATASET@theirs`" in text
    node.importer.import_chain(cities.id, expected_head=None, new_head=after.head, alias="", ref="theirs")
    assert node.references.fast_forward("cities@theirs").handle.state == after


def test_a_transform_and_a_polling_source_are_defined_by_the_owner_only(
    node: Coordinator, root: str, derivative: str
) -> None:
    push = root[root.index("    - kind: AddPushSource") :]
    node.add(
        root, derivative, root.replace("name: cities", "name: polled").replace(push, "    - kind: SetInfo\n")
    )
    transform = replace(
        node.find("cities.copy").state.transform or a_transform(),
        transform=a_query(SqlQueryStep(query="SELECT 1")),
    )
    for name, event, what in (
        ("cities.copy", transform, "the transform"),
        ("polled", a_polling_source(), "the polling source"),
    ):
        known = node.find(name)
        after = stored(node, known.state, event)
        outcome = imported(node, known.id, known.state.head, after.head)
        assert isinstance(outcome, Refusal)
        assert (outcome.code, what in outcome.text) == ("ForeignDefinition", True)
        assert node.find(name).state == known.state


def test_no_definition_is_imported_and_removed_within_one_chain(
    node: Coordinator, cities: DatasetHandle
) -> None:
    """Otherwise it would be in force after a rollback by the owner, and a verification would run it."""
    original = cities.state.push_sources["default"]
    other = replace(original, merge=MergeStrategyLedger(primary_key=("city",)))
    for events in (
        (a_push_source("second"), DisablePushSource(source_name="second")),
        (other, original),
    ):
        state = cities.state
        for event in events:
            state = stored(node, state, event)
        outcome = imported(node, cities.id, cities.state.head, state.head)
        assert isinstance(outcome, Refusal)
        assert outcome.code == "ForeignDefinition"
        assert node.find("cities").state == cities.state

    gone = stored(node, cities.state, DisablePushSource(source_name="default"))
    back = stored(node, gone, original)
    assert imported(node, cities.id, cities.state.head, back.head) == Committed(state=back)


def test_an_event_of_an_unknown_kind_is_not_taken_from_others(
    node: Coordinator, cities: DatasetHandle
) -> None:
    """A later version of this node may read it as a definition."""
    one, other = (
        encode_message(a_block(cities.state, event)) for event in (AddData(), DisablePollingSource())
    )
    (at,) = (n for n, (left, right) in enumerate(zip(one, other, strict=True)) if left != right)
    raw = encode_message(Manifest(kind=BLOCK_KIND, version=3, content=one[:at] + bytes([99]) + one[at + 1 :]))
    node.blobs.put(cities.id, ObjectKind.BLOCK, block_hash(raw), raw)
    outcome = imported(node, cities.id, cities.state.head, block_hash(raw))
    assert isinstance(outcome, Refusal)
    assert outcome.code == "ForeignDefinition"
    node.keys.remove(cities.id)
    assert isinstance(imported(node, cities.id, cities.state.head, block_hash(raw)), Committed)


def test_no_forced_import_brings_back_what_the_owner_has_disabled(
    node: Coordinator, cities: DatasetHandle
) -> None:
    disabled = stored(node, cities.state, DisablePushSource(source_name="default"))
    assert isinstance(
        node.importer.import_chain(
            cities.id, expected_head=cities.state.head, new_head=disabled.head, alias="", may_define=True
        ),
        Committed,
    )
    outcome = forced(node, cities, cities.state.head)
    assert isinstance(outcome, Refusal)
    assert outcome.code == "ForeignDefinition"
    assert node.refs.head(cities.id) == disabled.head


def test_the_owner_accepts_a_definition_and_a_copy_takes_any(
    node: Coordinator, cities: DatasetHandle
) -> None:
    one = stored(node, cities.state, a_push_source("second"))
    staged = node.importer.import_chain(
        cities.id, expected_head=None, new_head=one.head, alias="", ref="theirs"
    )
    assert staged == Committed(state=one)
    assert node.references.fast_forward("cities@theirs").handle.state == one

    two = stored(node, one, a_push_source("third"))
    assert isinstance(imported(node, cities.id, one.head, two.head), Refusal)
    node.keys.remove(cities.id)
    assert imported(node, cities.id, one.head, two.head) == Committed(state=two)


def test_a_dataset_whose_key_outlived_it_is_not_defined_by_others(
    node: Coordinator, cities: DatasetHandle
) -> None:
    node.catalog.remove(cities.alias)
    node.refs.remove(cities.id, HEAD, expected=None)
    outcome = imported(node, cities.id, None, cities.state.head, "copy")
    assert isinstance(outcome, Refusal)
    assert outcome.code == "ForeignDefinition"
    assert "its key is here, but the dataset is not; to restore it, move the key's file" in outcome.text
    assert node.catalog.by_alias("copy") is None
    key = dataset_key(node.keys.folder, cities.id)
    node.keys.remove(cities.id)
    assert isinstance(imported(node, cities.id, None, cities.state.head, "copy"), Committed)
    node.keys.save(key)
    assert isinstance(node.propose(node.find("copy"), [SetInfo(description="restored")]), Committed)


KEY = generate()


def sign(block: Multihash) -> bytes:
    return encode_signature(sign_block(KEY, block))


def commit(node: Coordinator, known: DatasetHandle, *texts: str, signed: bool = True) -> Outcome:
    committer = Committer(
        blobs=node.blobs,
        refs=node.refs,
        states=node.states,
        locks=NoLocks(),
        require_owned=OwnershipCheck(keys=node.keys, catalog=node.catalog).require,
        clock=node.clock,
        sign=sign if signed else None,
    )
    return committer.commit(
        known.id,
        expected_head=known.state.head,
        events=[SetInfo(description=text) for text in texts],
        system_time=node.clock.now(),
    )


class NoLocks:
    """Gives every lock."""

    def acquire(self, *_: object) -> "NoLocks":
        return self

    def release(self) -> None:
        """Nothing is held."""


def signatures(node: Coordinator, known: DatasetHandle) -> set[Multihash]:
    return set(node.blobs.names(known.id, ObjectKind.SIGNATURE))


def test_each_block_of_a_commit_is_signed(node: Coordinator, root: str) -> None:
    node.add(root)
    known = node.find("cities")
    before = set(node.blobs.names(known.id, ObjectKind.BLOCK))

    assert isinstance(commit(node, known, "one", "two"), Committed)

    new = set(node.blobs.names(known.id, ObjectKind.BLOCK)) - before
    assert len(new) == 2
    assert signatures(node, known) == new
    for block in new:
        checked = check_signature(
            block, stored_signature(StoredDataset(known.id, node.blobs, node.refs), block)
        )
        assert (checked.status, checked.signer) == (SignatureStatus.VALID, str(SignerId.of_key(KEY)))


def test_without_a_key_none_is_written(node: Coordinator, root: str) -> None:
    node.add(root)
    known = node.find("cities")

    assert isinstance(commit(node, known, "one", signed=False), Committed)

    assert signatures(node, known) == set()
    head = node.find("cities").state.head
    assert (
        check_signature(head, stored_signature(StoredDataset(known.id, node.blobs, node.refs), head)).status
        is SignatureStatus.NONE
    )


def test_a_stale_proposal_is_not_signed(node: Coordinator, root: str) -> None:
    node.add(root)
    known = node.find("cities")
    node.push("cities", "Oslo")

    assert isinstance(commit(node, known, "late"), Overtaken)

    assert signatures(node, known) == set()
