"""References of a dataset in addition to its head, and the import of chains from other nodes.

A chain can be staged at a reference, where it is inspected and verified before the head is moved to it.
"""

from dataclasses import dataclass, replace

from odf_common.chain.arrivals import Arrival, OwnWork, changes, require_admissible, require_same_work
from odf_common.chain.compare_chains import Behind, Comparison, Diverged, common_block, compare
from odf_common.chain.rules import admit
from odf_common.chain.state import ChainState
from odf_common.chain.walk import blocks_between
from odf_common.dataset.dataset_notes import dropped_blocks
from odf_common.dataset.node_datasets import require_readable_block
from odf_common.errors import (
    AlreadyExists,
    ChainRuleViolated,
    HeadMoved,
    InvalidInput,
    NotFound,
    OdfError,
    Refused,
    VerificationFailed,
)
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import HEAD, MARK, DatasetId, parse_alias, split_ref
from odf_common.metadata.events import DatasetKind, Seed
from odf_common.ports.store import (
    CatalogEntry,
    DatasetUnknown,
    ObjectKind,
    RefStore,
    new_creation,
    require_unmoved,
)
from odf_coordinator.catalog.datasets import (
    DatasetHandle,
    Datasets,
    KeyStore,
    ReferenceUnknown,
    hold_inputs,
    require_no_cycle,
)
from odf_coordinator.commit.committer import (
    Committed,
    Committer,
    Outcome,
    Overtaken,
    refusal_of,
    require_committed,
    retry_on_conflict,
)
from odf_coordinator.definitions.create import DatasetCreator
from odf_coordinator.errors import NotFastForward
from odf_coordinator.lifecycle import Claims
from odf_coordinator.storage import require_objects


@dataclass(frozen=True, slots=True, kw_only=True)
class Importer:
    """Imports chains whose blocks are already stored: admits all new blocks, or none."""

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
        """Move a reference to `new_head` atomically. A new dataset gets the name `alias`.

        The head moves only forward unless `is_forced`; other references may move to any block. Dropped blocks stay in
        the store. The new blocks of an owned dataset may have only the events that `OWNED` in `chain/arrivals` allows,
        unless `may_define` is True, because the owner takes over all definitions. `creation` identifies the creation of
        a new dataset; empty: a random value.
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
        """Import a chain into its dataset; `new` is the catalog entry of a dataset that does not exist yet."""
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
        """Move the head. After that a new dataset gets its name, which makes it exist."""
        dataset = entry.dataset_id
        head = self.refs.head(dataset)
        # The command was repeated, because the reply to the first one was lost.
        if head == new_head:
            return Committed(state=self.datasets.states.at(dataset, head), already=True)
        if head != expected:
            return Overtaken(expected=expected, head=head)
        # Blocks that both chains have were admitted before.
        base = self._common(dataset, expected, new_head) if is_forced and expected is not None else expected
        own = None
        # The owner of a dataset executes what its chain defines, so definitions of other nodes are refused.
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
        """Return the last common block of the chains of two blocks; None if they have none."""
        read = self.datasets.reader(dataset)
        return common_block(compare(read, head, read, block), head, block)

    def _admit(
        self,
        dataset: DatasetId,
        expected: Multihash | None,
        new_head: Multihash,
        own: OwnWork | None = None,
    ) -> ChainState:
        """Check the blocks after `expected`, and return the state at `new_head`.

        Hashes, chain rules, objects, and the rules for blocks of other nodes are checked.
        """
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


Expected = str  # the hash that a reference must have to be moved; empty: it must not exist


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainComparison:
    """The relation of a left chain to a right chain, and their last common block."""

    relation: Comparison
    common: Multihash | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A reference of a dataset and its relation to the head, or the problem if one of them cannot be read."""

    name: str
    block: Multihash | None
    sequence_number: int | None = None
    compared: ChainComparison | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FastForward:
    """The result of a fast-forward: the dataset, and the definitions that its owner took over with the new blocks."""

    handle: DatasetHandle
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """Manages references of datasets; each is moved by compare-and-set."""

    datasets: Datasets
    refs: RefStore
    importer: Importer
    creator: DatasetCreator
    keys: KeyStore

    def all(self, ref: str) -> tuple[Reference, ...]:
        """Return all references of a dataset, the head first, then ordered by name; unreadable ones are included."""
        entry = self.datasets.entry(ref)
        names = [name for name in self.refs.names(entry.dataset_id) if name != HEAD]
        head: DatasetHandle | None = None
        references: list[Reference] = []
        for name in (HEAD, *names):
            block: Multihash | None = None
            try:
                block = self.refs.head(entry.dataset_id, name)
                if block is None:  # removed in the meantime
                    continue
                handle = self._at(entry, name, block)
                head = handle if name == HEAD else head
                references.append(self._reference(handle, head))
            except OdfError as error:
                references.append(Reference(name=name, block=block, problem=str(error)))
        if not references:
            raise DatasetUnknown(what=ref)
        return tuple(references)

    def set(self, ref: str, block: str, expected: Expected | None) -> Reference:
        """Create a reference, or move it, to a block, which is given by its hash or by another reference.

        By default it is the head. The chain up to the block and its objects are checked. Raises `HeadMoved` if the
        reference is not `expected`, or was moved concurrently.
        """
        text, name = self._split_branch(ref)
        head = self.datasets.find(text)
        target = self._block(head, block)
        outcome = self.importer.import_chain(
            head.id,
            expected_head=self._expected_block(head, name, expected),
            new_head=target,
            alias="",
            ref=name,
        )
        state = require_committed(head.id, outcome).state
        return self._reference(DatasetHandle(entry=head.entry, state=state, ref=name), head)

    def delete(self, ref: str, expected: Expected | None) -> None:
        """Remove a reference; its blocks stay. Raises `ReferenceUnknown`.

        Without `expected` the reference is not read, so a damaged one can be removed too.
        """
        text, name = self._split_branch(ref)
        entry = self.datasets.entry(text)
        if name not in self.refs.names(entry.dataset_id):
            raise ReferenceUnknown(what=f"reference {name} of {entry.alias}")
        if expected == "":  # it must not exist, but it does: raises
            require_unmoved(entry.dataset_id, name, None, self.refs.head(entry.dataset_id, name))
        block = Multihash.parse(expected) if expected else None
        self.importer.committer.remove_ref(entry.dataset_id, name, expected=block)

    def fast_forward(self, ref: str) -> FastForward:
        """Move the head forward to the reference, unless it is already at the reference or ahead of it.

        The owner takes over all new blocks, so definitions and positions of sources may change. Raises `Refused` if the
        chains have diverged.
        """
        text, name = self._split_branch(ref)
        return retry_on_conflict(lambda: self._fast_forward(self.datasets.find(text), name))

    def compare(self, left: str, right: str) -> ChainComparison:
        """Compare the chains of two datasets, or of two references of one dataset."""
        return self._compare(self.datasets.open_at(left), self.datasets.open_at(right))

    def _fast_forward(self, head: DatasetHandle, name: str) -> FastForward:
        candidate = self.datasets.open_at(f"{head.id}{MARK}{name}")
        compared = self._compare(head, candidate)
        if isinstance(compared.relation, Diverged):
            text = (
                f"{head.alias} has {compared.relation.ours} blocks and {name} has {compared.relation.theirs} "
                f"that the other one lacks; the last common block is {compared.common}"
            )
            raise NotFastForward(text=text)
        if not isinstance(compared.relation, Behind):
            return FastForward(handle=head)
        entry, is_owned = head.entry, self.keys.has(head.id)
        if is_owned:
            entry = self.creator.ensure_push_topics(head, candidate.state.push_sources.values())
        outcome = self.importer.import_chain(
            head.id,
            expected_head=head.state.head,
            new_head=candidate.state.head,
            alias="",
            may_define=True,
        )
        state = require_committed(head.id, outcome).state
        taken_over = tuple(changes(head.state, state)) if is_owned else ()
        return FastForward(handle=DatasetHandle(entry=entry, state=state), changes=taken_over)

    def _split_branch(self, ref: str) -> tuple[str, str]:
        text, name = split_ref(ref)
        if name == HEAD:
            expected = f"write {text or 'DATASET'}{MARK}NAME for another reference"
            raise InvalidInput(
                text=f"{ref} is a head, which only commits, fast-forward and reset move; {expected}"
            )
        return text, name

    def _block(self, head: DatasetHandle, block: str) -> Multihash:
        if not block or block == HEAD:
            return head.state.head
        try:
            name = Multihash.parse(block)
        except InvalidInput:
            return self.datasets.open_at(f"{head.id}{MARK}{block}").state.head
        if not self.datasets.blobs.has(head.id, ObjectKind.BLOCK, name):
            raise NotFound(what=f"block {block} of {head.alias}")
        return name

    def _expected_block(
        self, handle: DatasetHandle, name: str, expected: Expected | None
    ) -> Multihash | None:
        if expected is None:
            return self.refs.head(handle.id, name)
        return Multihash.parse(expected) if expected else None

    def _at(self, entry: CatalogEntry, name: str, block: Multihash) -> DatasetHandle:
        states = self.datasets.states
        state = (states.at if name == HEAD else states.state_at)(entry.dataset_id, block)
        return DatasetHandle(entry=entry, state=state, ref=name)

    def _reference(self, handle: DatasetHandle, head: DatasetHandle | None) -> Reference:
        return Reference(
            name=handle.ref,
            block=handle.state.head,
            sequence_number=handle.state.sequence_number,
            compared=None if head is None else self._compare(handle, head),
        )

    def _compare(self, left: DatasetHandle, right: DatasetHandle) -> ChainComparison:
        heads = left.state.head, right.state.head
        readers = self.datasets.reader(left.id), self.datasets.reader(right.id)
        relation = compare(readers[0], heads[0], readers[1], heads[1])
        return ChainComparison(relation=relation, common=common_block(relation, *heads))
