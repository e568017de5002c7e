"""Integrity: every object that a chain refers to exists and has the declared hash (spec: Dataset Validation).

The store itself is read, not the cache of this node: a bucket may have lost objects that the cache still has.

First the chain is followed by hashes from the head to the seed. Then the chain rules are applied from the seed to the
head, and data and checkpoints are checked. Only bytes that were hashed here are trusted. `replay` checks whether
transforms were executed honestly.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice

import pyarrow as pa

from odf_common.adapters.local.faults import translate_os_errors
from odf_common.chain.rules import admit
from odf_common.chain.state import ChainState
from odf_common.chain.walk import ChainBroken, iterate
from odf_common.data.schema_evolution import schema_of_event
from odf_common.data.slice_checks import RecordsDiffer, check_records
from odf_common.data.slices import read_foreign_slice
from odf_common.dataset.signature_check import (
    SignatureCheck,
    SignatureStatus,
    check_signature,
    stored_signature,
)
from odf_common.errors import (
    ChainRuleViolated,
    Damaged,
    InvalidInput,
    NotFound,
    OdfError,
    Unavailable,
    VerificationFailed,
)
from odf_common.hashing.logical import logical_hash
from odf_common.hashing.multihash import Multihash, physical_hash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import Checkpoint, DataEvent, DataSlice, MetadataBlock, SetDataSchema
from odf_common.ports.store import ObjectKind
from odf_verifier.targets import Damage, Problem, Tally, Target, block_problem

HASHERS = 2  # threads; hashing releases the GIL
BROKEN = {
    "missing": Damage.BLOCK_MISSING,
    "corrupt": Damage.BLOCK_HASH_MISMATCH,
    "unreadable": Damage.BLOCK_UNREADABLE,
    "misplaced": Damage.RULE_VIOLATED,
}
QUEUED = 8  # slices submitted to the hashers at a time, so that a long chain needs little memory

# Blocks with objects done, their total, the problems of the last one.
CheckProgress = tuple[int, int, list[Problem]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A block of the chain whose bytes match its hash."""

    hash: Multihash
    version: int
    block: MetadataBlock

    def problem(self, kind: Damage, text: str, damaged: Multihash | None = None) -> Problem:
        """Return a problem with this block, or with the object `damaged` that it declares."""
        return block_problem(self.hash, self.block, kind, text, damaged)


def check_chain(target: Target, *, since: ChainState | None = None) -> tuple[list[Link], list[Problem]]:
    """Check the chain after `since`; return its blocks, oldest first, and problems with the head, blocks or rules.

    If the chain is broken at a block, the blocks after it are returned, so that their objects can still be checked.
    """
    try:
        head = target.reader.head(target.ref)
    except (InvalidInput, VerificationFailed) as error:
        return [], [Problem(kind=Damage.HEAD_UNREADABLE, text=str(error))]
    if head is None:
        return [], [Problem(kind=Damage.HEAD_UNREADABLE, text="the dataset has no head")]
    links, problems = _walk(target, head, None if since is None else since.head)
    if not problems:
        problems = _fold(links, since, target.dataset)
    return links, problems


def _walk(target: Target, head: Multihash, stop: Multihash | None) -> tuple[list[Link], list[Problem]]:
    links: list[Link] = []
    try:
        for name, decoded, _ in iterate(partial(_stored_block, target), head):
            if name == stop:
                return links[::-1], []
            links.append(Link(hash=name, version=decoded.version, block=decoded.block))
    except ChainBroken as error:
        broken = Multihash.parse(error.block)
        problem = Problem(
            kind=BROKEN[error.kind],
            block=broken,
            sequence_number=error.sequence_number,
            object=broken,
            text=str(error),
        )
        return links[::-1], [problem]
    except Damaged as error:  # it is not a regular file, or a bucket has other bytes
        above = links[-1].block if links else None
        damaged = head if above is None else above.prev_block_hash
        number = None if above is None else above.sequence_number - 1
        kind = Damage.BLOCK_HASH_MISMATCH
        problem = Problem(kind=kind, block=damaged, sequence_number=number, object=damaged, text=str(error))
        return links[::-1], [problem]
    if stop is None:
        return links[::-1], []
    lost = "the last verified block is no longer in the chain"
    return links[::-1], [Problem(kind=Damage.RULE_VIOLATED, block=head, text=lost)]


def _stored_block(target: Target, name: Multihash) -> bytes:
    with target.reader.open_stored(ObjectKind.BLOCK, name) as file:
        return file.read()


def _fold(links: list[Link], since: ChainState | None, dataset: DatasetId) -> list[Problem]:
    state = since
    for link in links:
        try:
            state = admit(state, link.block, block_hash=link.hash, version=link.version)
        except ChainRuleViolated as error:
            return [link.problem(Damage.RULE_VIOLATED, str(error))]
    if state is not None and state.dataset_id != dataset:
        text = f"the seed has the id {state.dataset_id}, the folder {dataset}"
        return [Problem(kind=Damage.RULE_VIOLATED, text=text)]
    return []


def check_objects(
    target: Target, links: list[Link], tally: Tally, *, reads_records: bool, since: ChainState | None = None
) -> Iterator[CheckProgress]:
    """Check all slices and checkpoints that `links` declare; these blocks follow the state `since`.

    Bytes are hashed; with `reads_records`, records too. Yields the result for each block that declares objects, in
    chain order, as soon as it is known. The number of checked bytes is added to `tally`.
    """
    jobs = list(_jobs(links, None if since is None else since.schema))
    waiting: list[Future[list[Problem]]] = []
    with ThreadPoolExecutor(HASHERS, thread_name_prefix="hasher") as pool:

        def submit(job: _Job) -> Future[list[Problem]]:
            return pool.submit(_check_event, target, job, tally, reads_records=reads_records)

        rest = iter(jobs)
        # Only a few ahead: a caller that stops early has to wait for those that were submitted.
        waiting.extend(submit(job) for job in islice(rest, QUEUED))
        for done in range(1, len(jobs) + 1):
            yield done, len(jobs), waiting.pop(0).result()
            waiting.extend(submit(job) for job in islice(rest, 1))


@dataclass(frozen=True, slots=True)
class _Job:
    """A block that declares objects, and the schema that its slice must have, None if that is unknown."""

    link: Link
    event: DataEvent
    schema: pa.Schema | None


def _jobs(links: list[Link], set_before: SetDataSchema | None) -> Iterator[_Job]:
    schema = _schema(set_before)
    for link in links:
        event = link.block.event
        if isinstance(event, SetDataSchema):
            schema = _schema(event)
        elif isinstance(event, DataEvent) and (event.new_data or event.new_checkpoint):
            yield _Job(link, event, schema)


def _schema(event: SetDataSchema | None) -> pa.Schema | None:
    try:
        return None if event is None else schema_of_event(event)
    except InvalidInput:
        return None


def _check_event(target: Target, job: _Job, tally: Tally, *, reads_records: bool) -> list[Problem]:
    link, event = job.link, job.event
    problems: list[Problem] = []
    if event.new_data is not None:
        problems += _check_slice(target, link, event.new_data, job.schema, reads_records=reads_records)
        tally.bytes += event.new_data.size
    if event.new_checkpoint is not None:
        problems += _check_checkpoint(target, link, event.new_checkpoint)
        tally.bytes += event.new_checkpoint.size
    return problems


def _check_slice(
    target: Target, link: Link, data: DataSlice, schema: pa.Schema | None, *, reads_records: bool
) -> list[Problem]:
    """Check the bytes of a slice, then its records. If the bytes are wrong, the records are not checked."""
    declared = _DeclaredObject(ObjectKind.DATA, data.physical_hash, data.size, Damage.PHYSICAL_HASH_MISMATCH)
    problems = _check_bytes(target, link, declared)
    if problems or not reads_records:
        return problems
    return _check_records(target, link, data, schema)


def _check_records(target: Target, link: Link, data: DataSlice, schema: pa.Schema | None) -> list[Problem]:
    name = data.physical_hash
    try:
        with translate_os_errors():
            file = target.reader.local_path(ObjectKind.DATA, name)
            # A limit of this machine's memory would be a verdict on the machine, not on the slice.
            table = read_foreign_slice(file, data.offset_interval.records)
        actual = logical_hash(table)
    except Unavailable:  # of the disk or the process, not of the slice
        raise
    except OdfError as error:
        return [link.problem(Damage.LOGICAL_HASH_MISMATCH, f"the slice cannot be read: {error}", name)]
    if actual != data.logical_hash:
        text = f"declared {data.logical_hash}, but the records hash to {actual}"
        return [link.problem(Damage.LOGICAL_HASH_MISMATCH, text, name)]
    try:
        check_records(table, data.offset_interval, schema, link.block.system_time)
    except RecordsDiffer as error:
        return [link.problem(Damage(error.kind), error.text, name)]
    return []


def _check_checkpoint(target: Target, link: Link, checkpoint: Checkpoint) -> list[Problem]:
    name, size = checkpoint.physical_hash, checkpoint.size
    declared = _DeclaredObject(ObjectKind.CHECKPOINT, name, size, Damage.CHECKPOINT_HASH_MISMATCH)
    return _check_bytes(target, link, declared)


@dataclass(frozen=True, slots=True)
class _DeclaredObject:
    """An object that a block declares, and the kind of damage to report if its bytes differ."""

    kind: ObjectKind
    name: Multihash
    size: int
    damage: Damage


def _check_bytes(target: Target, link: Link, declared: _DeclaredObject) -> list[Problem]:
    kind, name = declared.kind, declared.name
    with suppress(NotFound):
        try:
            with target.reader.open_stored(kind, name) as file:
                actual = physical_hash(file)
        except Damaged as error:
            return [link.problem(declared.damage, str(error), name)]
        if actual != name:
            return [link.problem(declared.damage, f"the stored bytes hash to {actual}", name)]
        stored = target.reader.size(kind, name)
        if stored != declared.size:
            text = f"declared {declared.size} bytes, but has {stored}"
            return [link.problem(Damage.SIZE_MISMATCH, text, name)]
        return []
    return [link.problem(Damage.OBJECT_MISSING, f"missing in {kind}", name)]


def check_signatures(target: Target, links: Iterable[Link]) -> Iterator[Problem]:
    """Yield a problem for each block with an invalid signature, in chain order."""
    for link in links:
        checked = _check(target, link)
        if checked.status is SignatureStatus.INVALID:
            claimed = f", claimed by {checked.signer}" if checked.signer else ""
            text = f"{ObjectKind.SIGNATURE}/{link.hash}: {checked.fault}{claimed}"
            yield link.problem(Damage.SIGNATURE_INVALID, text, link.hash)


def _check(target: Target, link: Link) -> SignatureCheck:
    try:
        return check_signature(link.hash, stored_signature(target.reader, link.hash))
    except Damaged as error:
        return SignatureCheck(status=SignatureStatus.INVALID, fault=error.why)
