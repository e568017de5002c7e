"""The datasets to verify, on this node or in a folder, and the problems and counts that a verification finds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlparse

from odf_common.adapters.local.exported_dataset import FolderDataset
from odf_common.chain.state import ChainState
from odf_common.codec.flatbuffers import decode_block
from odf_common.dataset.node_datasets import NodeDatasets, StoredDataset
from odf_common.errors import Damaged, InvalidInput, NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import (
    HEAD,
    MARK,
    PREFIX,
    DatasetId,
    is_pattern,
    matching_names,
    split_ref,
)
from odf_common.metadata.events import MetadataBlock, Seed
from odf_common.ports.store import CatalogEntry, DatasetReader, ObjectKind, unknown_dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A dataset to verify: its name for users, its id, its stores, and the reference at which its chain ends."""

    name: str
    dataset: DatasetId
    reader: DatasetReader
    is_local: bool
    ref: str = HEAD

    @property
    def log_facts(self) -> Mapping[str, str]:
        """Return the fields that identify the dataset in log messages."""
        return {"dataset": self.name, "dataset_id": str(self.dataset)}


def targets(
    datasets: NodeDatasets, refs: tuple[str, ...], *, every: bool, recursive: bool
) -> tuple[Target, ...]:
    """Return the datasets that `refs` name or match, or all with `every`. Raises `NotFound`.

    With `recursive`, each dataset follows the inputs that it has read.
    """
    if every:
        return tuple(of_entry(datasets, entry) for entry in datasets.catalog.entries())
    by_name: dict[str, Target] = {}
    for ref in _expand_patterns(datasets, refs):
        for target in _resolve(datasets, ref, recursive=recursive):
            by_name.setdefault(target.name, target)
    return tuple(by_name.values())


def _expand_patterns(datasets: NodeDatasets, refs: tuple[str, ...]) -> Iterator[str]:
    """Yield the references; patterns are replaced by the names that match, including those of unreadable datasets."""
    for ref in refs:
        if is_pattern(ref):
            yield from matching_names([ref], (entry.alias for entry in datasets.catalog.entries()))
        else:
            yield ref


def _resolve(datasets: NodeDatasets, ref: str, *, recursive: bool) -> Iterator[Target]:
    if ref.startswith("file://"):
        yield _of_folder(ref)
        return
    text, name = split_ref(ref)
    entry = (
        datasets.catalog.by_id(DatasetId.parse(text))
        if text.startswith(PREFIX)
        else datasets.catalog.by_alias(text)
    )
    if entry is None:
        raise unknown_dataset(text, (entry.alias for entry in datasets.catalog.entries()))
    if name != HEAD and datasets.refs.head(entry.dataset_id, name) is None:
        raise NotFound(what=f"reference {name} of {entry.alias}")
    if recursive:
        block = datasets.refs.head(entry.dataset_id, name)
        if block is not None:
            yield from _inputs(
                datasets, state_of(datasets, entry.dataset_id, name, block), {entry.dataset_id}
            )
    yield of_entry(datasets, entry, name)


def state_of(datasets: NodeDatasets, dataset: DatasetId, ref: str, block: Multihash) -> ChainState:
    """Return the state of a dataset of this node at the block of one of its references."""
    return (datasets.states.at if ref == HEAD else datasets.states.state_at)(dataset, block)


def _inputs(datasets: NodeDatasets, state: ChainState, seen: set[DatasetId]) -> Iterator[Target]:
    """Yield the inputs that a chain has read or will read, at their heads; each follows its own inputs."""
    transform = state.transform
    declared = (
        () if transform is None else (DatasetId.parse(input_.dataset_ref) for input_ in transform.inputs)
    )
    for dataset in (*(progress.dataset_id for progress in state.input_progress), *declared):
        entry = datasets.catalog.by_id(dataset)
        if dataset in seen or entry is None:
            continue
        seen.add(dataset)
        read = datasets.states.current(dataset)
        if read is not None:
            yield from _inputs(datasets, read, seen)
        yield of_entry(datasets, entry)


def of_entry(datasets: NodeDatasets, entry: CatalogEntry, ref: str = HEAD) -> Target:
    """Return a dataset of this node at one of its references."""
    name = entry.alias if ref == HEAD else f"{entry.alias}{MARK}{ref}"
    return Target(
        name=name,
        dataset=entry.dataset_id,
        reader=StoredDataset(entry.dataset_id, datasets.blobs, datasets.refs),
        is_local=True,
        ref=ref,
    )


def _of_folder(url: str) -> Target:
    store = FolderDataset(Path(unquote(urlparse(url).path)))
    return Target(name=url, dataset=seed_of(store), reader=store, is_local=False)


def seed_of(store: FolderDataset) -> DatasetId:
    """Return the id in the seed, the first block.

    All blocks are searched for it instead of following the chain, which may be broken: it is verified afterwards.
    """
    for name in store.names(ObjectKind.BLOCK):
        seed = _seed_in(store, name)
        if seed is not None:
            return seed
    raise NotFound(what=f"a seed block in {store.folder}")


def _seed_in(store: FolderDataset, block: Multihash) -> DatasetId | None:
    try:
        event = decode_block(store.read_block(block)).block.event
    except (InvalidInput, Damaged):
        return None
    return event.dataset_id if isinstance(event, Seed) else None


class Damage(StrEnum):
    """Kinds of damage; the values are part of the command's JSON output."""

    HEAD_UNREADABLE = "head-unreadable"
    BLOCK_MISSING = "block-missing"
    BLOCK_HASH_MISMATCH = "block-hash-mismatch"
    BLOCK_UNREADABLE = "block-unreadable"
    RULE_VIOLATED = "chain-rule-violated"
    OBJECT_MISSING = "object-missing"
    SIZE_MISMATCH = "size-mismatch"
    PHYSICAL_HASH_MISMATCH = "physical-hash-mismatch"
    LOGICAL_HASH_MISMATCH = "logical-hash-mismatch"
    OFFSETS_MISMATCH = "offsets-mismatch"
    SCHEMA_MISMATCH = "schema-mismatch"
    OPERATION_INVALID = "operation-invalid"
    CORRECTION_INCOMPLETE = "correction-incomplete"
    SYSTEM_COLUMN_NULL = "system-column-null"
    TIME_OUT_OF_RANGE = "time-out-of-range"
    SYSTEM_TIME_MISMATCH = "system-time-mismatch"
    CHECKPOINT_HASH_MISMATCH = "checkpoint-hash-mismatch"
    SIGNATURE_INVALID = "signature-invalid"
    INPUT_MISSING = "input-missing"
    INPUT_NOT_ON_NODE = "input-not-on-node"
    INPUT_DIVERGED = "input-diverged"
    REPLAY_MISMATCH = "replay-mismatch"
    REPLAY_REFUSED = "replay-refused"
    REPLAY_FAILED = "replay-failed"
    RESULTS_CHANGED = "results-changed"
    ENGINE_NOT_AVAILABLE = "engine-not-available"
    DATA_DROPPED = "data-dropped"
    INPUT_DROPPED = "input-dropped"


# These prevent a complete verification, but are not damage.
UNDECIDED: Final = frozenset(
    {
        Damage.ENGINE_NOT_AVAILABLE,
        Damage.REPLAY_REFUSED,
        Damage.REPLAY_FAILED,
        Damage.RESULTS_CHANGED,
        Damage.DATA_DROPPED,
        Damage.INPUT_DROPPED,
        Damage.INPUT_NOT_ON_NODE,
    }
)

NOT_CHECKED: Final = frozenset(
    {Damage.RESULTS_CHANGED, Damage.REPLAY_REFUSED, Damage.REPLAY_FAILED, Damage.INPUT_NOT_ON_NODE}
)
"""The kinds that mean that a check was not possible with the engine and the inputs of this node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A difference between a dataset and its chain; `object` is the hash of the damaged object, if there is one."""

    kind: Damage
    block: Multihash | None = None
    sequence_number: int | None = None
    object: Multihash | None = None
    text: str = ""


@dataclass(slots=True, kw_only=True)
class Tally:
    """The numbers of blocks, bytes and transforms that have been checked so far."""

    blocks: int = 0
    bytes: int = 0
    transforms: int = 0


def block_problem(
    name: Multihash, block: MetadataBlock, kind: Damage, text: str, damaged: Multihash | None = None
) -> Problem:
    """Return a problem with a block, or with the object `damaged` that it declares."""
    return Problem(kind=kind, block=name, sequence_number=block.sequence_number, object=damaged, text=text)
