"""References next to a dataset's head: a chain is staged at one, inspected and verified; then the head follows."""

from dataclasses import dataclass

from odf_common.chain.arrivals import changes
from odf_common.chain.compare_chains import Behind, Comparison, Diverged, common_block, compare
from odf_common.errors import InvalidInput, NotFound, OdfError
from odf_common.hashing.multihash import Multihash
from odf_common.identity.branch_names import HEAD, MARK, split_ref
from odf_common.ports.store import CatalogEntry, DatasetUnknown, ObjectKind, RefStore, require_unmoved
from odf_coordinator.catalog.datasets import DatasetHandle, Datasets, ReferenceUnknown
from odf_coordinator.catalog.ownership import KeyStore
from odf_coordinator.commit.outcomes import require_committed, retry_on_conflict
from odf_coordinator.definitions.create import DatasetCreator
from odf_coordinator.errors import NotFastForward
from odf_coordinator.operations.import_chain import Importer

Expected = str  # the hash that a reference must have to be moved; empty: it must not exist


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainComparison:
    """The relation of a left chain to a right one, and their last common block."""

    relation: Comparison
    common: Multihash | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A reference of a dataset, and how it relates to the head; or the problem if one of them cannot be read."""

    name: str
    block: Multihash | None
    sequence_number: int | None = None
    compared: ChainComparison | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FastForward:
    """A dataset whose head has followed a reference, and what this node took over with it, if it has the key."""

    handle: DatasetHandle
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """Manages references; each is moved by compare-and-set."""

    datasets: Datasets
    refs: RefStore
    importer: Importer
    creator: DatasetCreator
    keys: KeyStore

    def all(self, ref: str) -> tuple[Reference, ...]:
        """Return all references of a dataset by name, its head first, including unreadable ones."""
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
        """Create or move a reference to a block, given by hash or by another reference; default: the head.

        The block's whole chain and objects are checked. Raises `HeadMoved` if the reference is not `expected`, or was
        moved concurrently.
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

        Without `expected` its content is not read, so it works for a damaged reference or chain.
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

        The owner takes over what the blocks bring, so definitions and positions of sources may change.

        Raises `Refused` if they have diverged.
        """
        text, name = self._split_branch(ref)
        return retry_on_conflict(lambda: self._fast_forward(self.datasets.find(text), name))

    def compare(self, left: str, right: str) -> ChainComparison:
        """Compare the chains of two datasets, or of two references of one."""
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
