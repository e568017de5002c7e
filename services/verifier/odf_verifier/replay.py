"""Replay: every transform is run again on the same records, and must give the same result (spec: Verifiability).

How a stored transform is run again is in `odf_common.dataset.replay`, which also rebuilds dropped data. Compared are
records (logical hash), offsets, watermark and checkpoint; how the same records are encoded does not matter.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import structlog

from odf_common.chain.add_data import later
from odf_common.chain.state import ChainState
from odf_common.chain.transform_inputs import InputMismatch
from odf_common.chain.walk import ChainBroken
from odf_common.data.schema_alignment import align_to_schema
from odf_common.data.schema_evolution import schema_of_event
from odf_common.data.slices import read_slice
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.dataset.replay import Replayer, StoredTransform
from odf_common.errors import Damaged, InvalidInput, InvalidQuery, NotFound
from odf_common.hashing.logical import logical_hash
from odf_common.hashing.multihash import Multihash
from odf_common.hashing.physical import physical_hash
from odf_common.metadata.engine_messages import TransformResponseSuccess
from odf_common.metadata.events import ExecuteTransform
from odf_common.ports.engine import Engine, EngineNotAvailable
from odf_common.ports.store import scratch_folder
from odf_verifier.explanations import dropped_input
from odf_verifier.integrity import Link
from odf_verifier.report import Damage, Problem
from odf_verifier.targets import Target

log = structlog.stdlib.get_logger(__name__)

_NON_FATAL: Final = frozenset({Damage.REPLAY_MISMATCH, Damage.ENGINE_NOT_AVAILABLE, Damage.REPLAY_REFUSED})
_REFUSED: Final = (
    "not checked, like later blocks of the same query: the engine refuses the query: {why}; the owner of the dataset "
    "can reset it to before the query with `odf reset`, and set another one with `odf commit`"
)
Outcome = tuple[int, int, Problem | None]  # transforms done, their total, the problem of the last one


class Replay:
    """Replays the transforms of one dataset."""

    def __init__(self, datasets: NodeDatasets, engine: Engine, target: Target) -> None:
        """Prepare for a replay; reads nothing yet."""
        self._datasets = datasets
        self._target = target
        # `at` caches the state of an input where replay has got to, so that the next verification continues there.
        self._replayer = Replayer(
            blobs=datasets.blobs, catalog=datasets.catalog, engine=engine, state_at=datasets.states.at
        )

    def run(self, links: list[Link], since: ChainState | None) -> Iterator[Outcome]:
        """Replay the transforms among `links`, which follow `since`; stops at the first that cannot be run.

        Transforms for an engine that is not installed, or of a query that the engine refuses, are reported once and
        skipped.

        Raises `Unavailable` if the engine cannot be reached.
        """
        total = sum(isinstance(link.block.event, ExecuteTransform) for link in links)
        blocks = ((link.hash, link.block, link.version) for link in links)
        done, missing, refused = 0, set(), set()
        for stored in self._replayer.transforms(blocks, since):
            assert stored.state.transform is not None, (
                "the rules have been checked: it follows a SetTransform"
            )
            transform = stored.state.transform.transform
            engine = transform.engine, transform.version
            if engine in missing or stored.state.transform in refused:
                continue
            begun = time.monotonic()
            problem = self._one(stored)
            log.debug(
                "transform replayed",
                dataset=self._target.name,
                dataset_id=str(self._target.dataset),
                block=str(stored.block_hash),
                sequence_number=stored.block.sequence_number,
                problem=None if problem is None else str(problem.kind),
                ms=round((time.monotonic() - begun) * 1000),
            )
            if problem is not None and problem.kind is Damage.ENGINE_NOT_AVAILABLE:
                missing.add(engine)  # reported once; other transforms may be for the installed engine
            elif problem is not None and problem.kind is Damage.REPLAY_REFUSED:
                refused.add(stored.state.transform)
            else:
                done += 1
            yield done, total, problem
            if problem is not None and problem.kind not in _NON_FATAL:
                return

    def _one(self, stored: StoredTransform) -> Problem | None:
        def problem(kind: Damage, text: str, damaged: Multihash | None = None) -> Problem:
            number = stored.block.sequence_number
            return Problem(
                kind=kind, block=stored.block_hash, sequence_number=number, object=damaged, text=text
            )

        with scratch_folder(self._datasets.blobs) as scratch:
            try:
                response = self._replayer.run(stored, alias=self._target.name, scratch=scratch)
            except EngineNotAvailable as error:
                return problem(Damage.ENGINE_NOT_AVAILABLE, f"cannot be replayed on this node: {error}")
            except InvalidQuery as error:
                return problem(Damage.REPLAY_REFUSED, _REFUSED.format(why=error))
            except (NotFound, Damaged, InputMismatch, ChainBroken) as error:
                name = dropped_input(self._datasets, stored.event) if isinstance(error, NotFound) else None
                if name is not None:
                    text = (
                        f"cannot be replayed: the data of {name} was dropped; `odf pull {name}` recomputes it"
                    )
                    return problem(Damage.INPUT_DROPPED, text)
                return problem(
                    Damage.INPUT_MISSING, f"an input is not available as the transform saw it: {error}"
                )
            else:
                for damaged, text in _differences(stored.event, stored.state, response, scratch):
                    return problem(Damage.REPLAY_MISMATCH, text, damaged)
                return None


def _differences(
    event: ExecuteTransform, state: ChainState, response: TransformResponseSuccess, scratch: Path
) -> Iterator[tuple[Multihash | None, str]]:
    """Yield the differences of the replay: the damaged object, and the text."""
    declared = event.new_data
    interval = None if declared is None else declared.offset_interval
    if response.new_offset_interval != interval:
        yield None, f"offsets: declared {interval}, but the replay gives {response.new_offset_interval}"
    elif declared is not None:
        try:
            actual = _records_hash(state, scratch / "data")
        except InvalidInput as error:
            yield declared.physical_hash, f"records: those of the replay do not fit the dataset: {error}"
        else:
            if actual != declared.logical_hash:
                text = f"records: declared {declared.logical_hash}, but the replay gives {actual}"
                yield declared.physical_hash, text
    watermark = later(state.watermark, response.new_watermark)
    if watermark != event.new_watermark:
        yield None, f"watermark: declared {event.new_watermark}, but the replay gives {watermark}"
    checkpoint = _hash_of(scratch / "checkpoint")
    if event.new_checkpoint is not None and checkpoint != event.new_checkpoint.physical_hash:
        yield (
            event.new_checkpoint.physical_hash,
            f"checkpoint: declared {event.new_checkpoint.physical_hash}, but the replay gives {checkpoint}",
        )


def _records_hash(state: ChainState, file: Path) -> Multihash:
    """Return the hash of the records aligned to the dataset's schema, which the engine does not know."""
    records = read_slice(file)
    if state.schema is not None:
        records = align_to_schema(records, schema_of_event(state.schema), state.vocabulary)
    return logical_hash(records)


def _hash_of(file: Path) -> Multihash | None:
    if not file.is_file():
        return None
    with file.open("rb") as opened:
        return physical_hash(opened)
