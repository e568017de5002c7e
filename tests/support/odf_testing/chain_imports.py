"""Chains that are stored as a pull does, and imported by the coordinator."""

from odf_common.chain.build_blocks import build_blocks
from odf_common.chain.state import ChainState
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import HEAD, DatasetId
from odf_common.metadata.events import KnownEvent
from odf_common.ports.store import ObjectKind
from odf_coordinator.catalog.datasets import DatasetHandle
from odf_coordinator.commit.committer import Outcome, Refusal
from odf_testing.coordinator import Coordinator


def stored(node: Coordinator, past: ChainState, *events: KnownEvent) -> ChainState:
    """Store blocks on top of a state, as a pull does before it asks for an import."""
    time = type(past.system_time)(past.system_time.ns + 1_000_000_000)
    blocks, state = build_blocks(past, events, system_time=time, version=3)
    for block in blocks:
        node.blobs.put(past.dataset_id, ObjectKind.BLOCK, block.hash, block.raw)
    return state


def forget(node: Coordinator, known: DatasetHandle) -> None:
    """Leave only the blocks and objects of a dataset, as a pull of another node's dataset stores them."""
    node.keys.remove(known.id)
    node.catalog.remove(known.alias)
    node.refs.remove(known.id, HEAD, expected=None)


def imported(
    node: Coordinator, dataset: DatasetId, expected: Multihash | None, head: Multihash, alias: str = ""
) -> Outcome:
    return node.importer.import_chain(dataset, expected_head=expected, new_head=head, alias=alias)


def refused(node: Coordinator, known: DatasetHandle, outcome: Outcome) -> str:
    """Return why nothing was imported."""
    assert isinstance(outcome, Refusal), outcome
    assert node.refs.head(known.id) == known.state.head
    assert node.find("cities").state == known.state
    return outcome.text


def forced(node: Coordinator, known: DatasetHandle, head: Multihash) -> Outcome:
    expected = node.refs.head(known.id)
    return node.importer.import_chain(
        known.id, expected_head=expected, new_head=head, alias="", is_forced=True
    )
