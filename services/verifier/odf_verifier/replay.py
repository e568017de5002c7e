"""Replay: every transform is run again on the same records, and must give the same (spec: Verifiability).

The request is rebuilt from what the stored event says it saw, by the same functions that planned it. Compared are
records (logical hash), offsets, watermark and checkpoint; another encoding of the same records is no difference.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from odf_common.chain.chain import ChainBroken, ReadBlock, blocks_between
from odf_common.chain.events import later
from odf_common.chain.rules import admit
from odf_common.chain.state import ChainState
from odf_common.chain.transforms import (
    InputMismatch,
    InputSlices,
    InputSource,
    RequestFiles,
    build_request,
    input_of,
)
from odf_common.data.continuing import continued
from odf_common.data.schema import schema_of_event
from odf_common.data.slices import read_slice
from odf_common.errors import InvalidInput, InvalidQuery, NotFound
from odf_common.hashing.logical import logical_hash
from odf_common.hashing.multihash import Multihash
from odf_common.hashing.physical import physical_hash
from odf_common.identity.did import DatasetId
from odf_common.metadata.block import MetadataBlock
from odf_common.metadata.engine import TransformResponseSuccess
from odf_common.metadata.events import ExecuteTransform, ExecuteTransformInput
from odf_common.ports.store import ObjectKind
from odf_common.runtime.environment import Environment
from odf_verifier.integrity import Link
from odf_verifier.report import Damage, Problem
from odf_verifier.targets import Target

Outcome = tuple[int, int, Problem | None]  # transforms done, of how many, what is wrong with the last


class Replay:
    """Runs the transforms of one dataset again."""

    def __init__(self, env: Environment, target: Target) -> None:
        """Begin with no input read."""
        self._env = env
        self._target = target
        self._inputs = _Inputs(env)

    def run(self, links: list[Link], since: ChainState | None) -> Iterator[Outcome]:
        """Replay the transforms among `links`, which follow `since`; ends with the first that cannot be run.

        Raises `Unavailable` when the engine cannot be reached.
        """
        total = sum(isinstance(link.block.event, ExecuteTransform) for link in links)
        done = 0
        state = since
        for link in links:
            event = link.block.event
            if isinstance(event, ExecuteTransform):
                assert state is not None, "the rules have been checked: a transform is not the first block"
                done += 1
                problem = self._one(link, event, state)
                yield done, total, problem
                if problem is not None and problem.kind is not Damage.REPLAY_MISMATCH:
                    return
            state = admit(state, link.block, block_hash=link.hash, version=link.version)

    def _one(self, link: Link, event: ExecuteTransform, state: ChainState) -> Problem | None:
        def problem(kind: Damage, text: str, damaged: Multihash | None = None) -> Problem:
            number = link.block.sequence_number
            return Problem(kind=kind, block=link.hash, sequence_number=number, object=damaged, text=text)

        scratch = self._env.blobs.scratch()
        try:
            files = self._files(state, scratch)
            slices, sources = self._inputs.advance(event, scratch)
            request = build_request(
                state,
                slices,
                sources,
                alias=self._target.name,
                system_time=link.block.system_time,
                files=files,
            )
            response = self._env.engine.execute_transform(request)
        except InvalidQuery as error:
            return problem(Damage.REPLAY_REFUSED, str(error))
        except (NotFound, InputMismatch, ChainBroken) as error:
            return problem(Damage.INPUT_MISSING, f"an input is not here as the transform saw it: {error}")
        else:
            for damaged, text in _differences(event, state, response, files):
                return problem(Damage.REPLAY_MISMATCH, text, damaged)
            return None
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _files(self, state: ChainState, scratch: Path) -> RequestFiles:
        prev = None
        if state.checkpoint is not None:
            name = state.checkpoint.physical_hash
            prev = str(self._env.blobs.local_path(self._target.dataset, ObjectKind.CHECKPOINT, name))
        return RequestFiles(
            prev_checkpoint=prev, new_checkpoint=str(scratch / "checkpoint"), new_data=str(scratch / "data")
        )


def _differences(
    event: ExecuteTransform, state: ChainState, response: TransformResponseSuccess, files: RequestFiles
) -> Iterator[tuple[Multihash | None, str]]:
    """Yield what the replay did otherwise, the damaged object first."""
    declared = event.new_data
    interval = None if declared is None else declared.offset_interval
    if response.new_offset_interval != interval:
        yield None, f"offsets: declared {interval}, replay gives {response.new_offset_interval}"
    elif declared is not None:
        try:
            actual = _records_hash(state, Path(files.new_data))
        except InvalidInput as error:
            yield declared.physical_hash, f"records: replay gives others than the dataset can hold: {error}"
        else:
            if actual != declared.logical_hash:
                text = f"records: declared {declared.logical_hash}, replay gives {actual}"
                yield declared.physical_hash, text
    watermark = later(state.watermark, response.new_watermark)
    if watermark != event.new_watermark:
        yield None, f"watermark: declared {event.new_watermark}, replay gives {watermark}"
    checkpoint = _hash_of(Path(files.new_checkpoint))
    if event.new_checkpoint is not None and checkpoint != event.new_checkpoint.physical_hash:
        yield (
            event.new_checkpoint.physical_hash,
            f"checkpoint: declared {event.new_checkpoint.physical_hash}, replay gives {checkpoint}",
        )


def _records_hash(state: ChainState, file: Path) -> Multihash:
    """Return the hash of the records in the types of the dataset, which the engine is not told."""
    records = read_slice(file)
    if state.schema is not None:
        records = continued(records, schema_of_event(state.schema), state.vocabulary)
    return logical_hash(records)


def _hash_of(file: Path) -> Multihash | None:
    if not file.is_file():
        return None
    with file.open("rb") as opened:
        return physical_hash(opened)


@dataclass(slots=True)
class _Cursor:
    """An input as far as it has been replayed."""

    state: ChainState | None = None


class _Inputs:
    """The inputs' chains, folded once, step by step, as the transforms saw them."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._cursors: dict[DatasetId, _Cursor] = {}

    def advance(
        self, event: ExecuteTransform, scratch: Path
    ) -> tuple[tuple[InputSlices, ...], dict[DatasetId, InputSource]]:
        """Return what each input brought to the transform; raises `NotFound` and what a broken chain raises."""
        slices = tuple(input_of(step, self._blocks(step)) for step in event.query_inputs)
        return slices, {step.dataset_id: self._source(step, scratch) for step in event.query_inputs}

    def _blocks(self, step: ExecuteTransformInput) -> list[MetadataBlock]:
        cursor = self._cursors.setdefault(step.dataset_id, _Cursor())
        at = None if cursor.state is None else cursor.state.head
        if at != step.prev_block_hash and step.prev_block_hash is not None:
            cursor.state = self._env.states.at(step.dataset_id, step.prev_block_hash)
        if step.new_block_hash is None:
            return []
        blocks = []
        for name, decoded, _ in blocks_between(
            self._reader(step.dataset_id), step.new_block_hash, step.prev_block_hash
        ):
            cursor.state = admit(cursor.state, decoded.block, block_hash=name, version=decoded.version)
            blocks.append(decoded.block)
        return blocks

    def _reader(self, dataset: DatasetId) -> ReadBlock:
        return lambda name: self._env.blobs.read(dataset, ObjectKind.BLOCK, name)

    def _source(self, step: ExecuteTransformInput, scratch: Path) -> InputSource:
        dataset = step.dataset_id
        state = self._cursors[dataset].state
        if state is None or state.schema is None:
            raise NotFound(what=f"a schema of {dataset}")
        schema_file = scratch / f"schema-{dataset.folder}.parquet"
        pq.write_table(schema_of_event(state.schema).empty_table(), schema_file)
        entry = self._env.catalog.by_id(dataset)
        return InputSource(
            alias=str(dataset) if entry is None else entry.alias,
            vocab=state.vocabulary,
            schema_file=str(schema_file),
            path_of=lambda name: str(self._env.blobs.local_path(dataset, ObjectKind.DATA, name)),
        )
