"""With a key, a signature is stored next to every committed block; the blocks are the same as without."""

from odf_testing.coordinator import Coordinator

from odf_common.codec.signature import encode_signature
from odf_common.dataset.node_datasets import StoredDataset
from odf_common.dataset.signature_check import SignatureStatus, check_signature, stored_signature
from odf_common.hashing.multihash import Multihash
from odf_common.identity.keys import SignerId, generate, sign_block
from odf_common.metadata.events import SetInfo
from odf_common.ports.store import ObjectKind
from odf_coordinator.catalog.datasets import DatasetHandle, OwnershipCheck
from odf_coordinator.commit.committer import Committed, Committer, Outcome, Overtaken

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
