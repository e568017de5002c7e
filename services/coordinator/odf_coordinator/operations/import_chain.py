"""Imports a chain whose blocks and objects another service has stored.

The objects of a derivative may be missing up to its drop marker: they are rebuilt later.

Who sends a chain does not decide what this node runs: it executes the transforms and sources of the datasets whose keys
it has, with its own rights. What may arrive is a table in `odf_common/chain/arrivals.py`.
"""

from dataclasses import dataclass, replace

from odf_common.chain.arrivals import Arrival, OwnWork, require_admissible, require_same_work
from odf_common.chain.compare_chains import common_block, compare
from odf_common.chain.rules import admit
from odf_common.chain.state import ChainState
from odf_common.chain.walk import blocks_between
from odf_common.dataset.node_datasets import require_readable_block
from odf_common.dataset.object_markers import dropped_blocks
from odf_common.errors import (
    AlreadyExists,
    ChainRuleViolated,
    HeadMoved,
    InvalidInput,
    NotFound,
    Refused,
    VerificationFailed,
)
from odf_common.hashing.multihash import Multihash
from odf_common.identity.branch_names import HEAD
from odf_common.identity.dataset_refs import parse_alias
from odf_common.identity.did import DatasetId
from odf_common.metadata.events import DatasetKind, Seed
from odf_common.ports.store import CatalogEntry, RefStore, new_creation
from odf_coordinator.catalog.datasets import Datasets
from odf_coordinator.catalog.dependency_guard import hold_inputs, require_no_cycle
from odf_coordinator.catalog.ownership import KeyStore
from odf_coordinator.commit.committer import Committer
from odf_coordinator.commit.outcomes import Committed, Outcome, Overtaken, refusal_of
from odf_coordinator.lifecycle.claims import Claims
from odf_coordinator.storage.object_checks import require_objects


@dataclass(frozen=True, slots=True, kw_only=True)
class Importer:
    """Admits stored blocks, all or none."""

    datasets: Datasets
    keys: KeyStore
    refs: RefStore
    committer: Committer
    claims: Claims

    def import_chain(  # noqa: PLR0913 - the fields of the command by name
        self,
        dataset: DatasetId,
        *,
        expected_head: Multihash | None,
        new_head: Multihash,
        alias: str,
        ref: str = HEAD,
        is_forced: bool = False,
        may_define: bool = False,
        creation: str = "",
    ) -> Outcome:
        """Move a reference to `new_head` atomically; a new dataset gets `alias`, and `creation` or a random one.

        The head only moves forward unless `is_forced`; then, and other references of an existing dataset always, it
        moves to any block. Blocks that it leaves stay in the store. Unless it `may_define`, since its owner takes it
        over, the chain of a dataset whose key is here brings only what `OWNED` in `chain/arrivals` allows.
        """
        try:
            if ref == HEAD:
                new = CatalogEntry(alias=alias, dataset_id=dataset, creation=creation or new_creation())
                return self._import(new, expected_head, new_head, is_forced=is_forced, may_define=may_define)
            with self.committer.lock(dataset):
                return self._stage(dataset, ref, expected_head, new_head)
        except HeadMoved:
            return Overtaken(expected=expected_head, head=self.refs.head(dataset, ref))
        except (
            ChainRuleViolated,
            InvalidInput,
            NotFound,
            Refused,
            VerificationFailed,
            AlreadyExists,
        ) as error:
            return refusal_of(error)

    def _import(
        self,
        new: CatalogEntry,
        expected: Multihash | None,
        new_head: Multihash,
        *,
        is_forced: bool,
        may_define: bool,
    ) -> Committed | Overtaken:
        """Import into the dataset; `new` is what it becomes if it does not exist."""
        entry = self.datasets.catalog.by_id(new.dataset_id)
        if entry is not None:
            return self._advance(entry, expected, new_head, is_forced=is_forced, may_define=may_define)
        if not new.alias:
            raise InvalidInput(text=f"{new.dataset_id} is new on this node and needs a name")
        entry = replace(new, alias=str(parse_alias(new.alias)))
        with self.claims.importing(entry.dataset_id, entry.alias):
            outcome = self._advance(entry, expected, new_head, is_new=True, may_define=may_define)
        if isinstance(outcome, Committed):
            self.committer.announce(outcome.state)  # now that it has a name
        return outcome

    def _advance(
        self,
        entry: CatalogEntry,
        expected: Multihash | None,
        new_head: Multihash,
        *,
        may_define: bool,
        is_new: bool = False,
        is_forced: bool = False,
    ) -> Committed | Overtaken:
        """Move the head; a new dataset gets its name after that, which makes it exist."""
        dataset = entry.dataset_id
        head = self.refs.head(dataset)
        # The command was repeated, since the reply to the first one was lost.
        if head == new_head:
            return Committed(state=self.datasets.states.at(dataset, head), already=True)
        if head != expected:
            return Overtaken(expected=expected, head=head)
        # Blocks that both chains have were admitted before.
        base = self._common(dataset, expected, new_head) if is_forced and expected is not None else expected
        own = None
        # With the key here, this node would run what the chain defines.
        if not may_define and self.keys.has(dataset):
            own = OwnWork.at_head(None if head is None else self._state(dataset, head))
        state = self._admit(dataset, base, new_head, own)
        if own is not None:
            require_same_work(own, state.definitions)
        with hold_inputs(self.datasets, entry, (state.transform,)), self.committer.lock(dataset):
            self.committer.move_ref(dataset, expected=expected, state=state)
        self.datasets.roots.discard(dataset)  # the chain may have another beginning now
        if is_new:
            with self.datasets.catalog.lock():
                # Under the lock that adds the name, so that no other dataset closes a cycle in between.
                require_no_cycle(self.datasets, entry, (state.transform,), are_here=False)
                self.datasets.catalog.add(entry)
        return Committed(state=state)

    def _stage(self, dataset: DatasetId, ref: str, expected: Multihash | None, block: Multihash) -> Committed:
        head = self.refs.head(dataset)
        if head is None:
            raise InvalidInput(text=f"{dataset} has no head, so it cannot have a reference {ref}")
        state = self._admit(dataset, self._common(dataset, head, block), block)
        self.committer.move_ref(dataset, expected=expected, state=state, ref=ref)
        return Committed(state=state)

    def _common(self, dataset: DatasetId, head: Multihash, block: Multihash) -> Multihash | None:
        """Return the last block that the chains of both have, None if there is none."""
        read = self.datasets.reader(dataset)
        return common_block(compare(read, head, read, block), head, block)

    def _admit(
        self,
        dataset: DatasetId,
        expected: Multihash | None,
        new_head: Multihash,
        own: OwnWork | None = None,
    ) -> ChainState:
        """Return the state at `new_head`, after checking its blocks: hashes, rules, objects, and what may arrive."""
        blobs, state = self.datasets.blobs, None
        arrival = Arrival(latest=self.committer.latest_time(), own=own)
        if expected is not None:
            require_readable_block(blobs, dataset, expected)
            state = self._state(dataset, expected)
        dropped = dropped_blocks(blobs, dataset)
        for name, decoded, _ in blocks_between(self.datasets.reader(dataset), new_head, expected):
            event = decoded.block.event
            if isinstance(event, Seed) and event.dataset_id != dataset:
                raise InvalidInput(text=f"the chain belongs to {event.dataset_id}, not to {dataset}")
            past, state = state, admit(state, decoded.block, block_hash=name, version=decoded.version)
            require_admissible(arrival, past, decoded.block)
            is_rebuilt = (
                state.kind is DatasetKind.Derivative and dropped is not None and dropped.contains(name)
            )
            if not is_rebuilt:
                require_objects(blobs, dataset, event)
        assert state is not None, "a chain has a block"
        return state

    def _state(self, dataset: DatasetId, block: Multihash) -> ChainState:
        states = self.datasets.states
        return (states.at if block == self.refs.head(dataset) else states.state_at)(dataset, block)
