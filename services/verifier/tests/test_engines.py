"""Transforms that ask for an unavailable engine are distinguished from those with a different result."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from odf_testing.builders import a_block, a_chain, a_dataset, a_hash, a_seed, a_transform
from odf_testing.verifier import Story

from odf_common.chain.state import ChainState
from odf_common.chain.transform_steps import InputMismatch
from odf_common.chain.walk import ChainBroken
from odf_common.dataset.replay import StoredBlock, StoredTransform
from odf_common.errors import Damaged, NotFound, OdfError
from odf_common.metadata.engine_messages import TransformResponseSuccess
from odf_common.metadata.events import DatasetKind, ExecuteTransform, OffsetInterval
from odf_common.ports.engine import EngineNotAvailable, EngineProgress, OnProgress, QueryFailed
from odf_verifier.grpc_servicer import _message
from odf_verifier.replay import Replay
from odf_verifier.targets import Damage, Problem, Tally, Target
from odf_verifier.verification import Verdict

INSTALLED = "new"
TARGET = Target(name="hourly", dataset=a_dataset(), reader=cast("Any", None), is_local=True)


@dataclass
class Transforms:
    """Transforms of one dataset, by the versions that they ask for; only `INSTALLED` can be run."""

    versions: tuple[str, ...]
    gives: TransformResponseSuccess | Exception
    seconds: float = 0.0
    """For which each runs, as the engine reports it."""
    is_one_query: bool = False

    def transforms(
        self, blocks: Iterable[StoredBlock], since: ChainState | None
    ) -> Iterator[StoredTransform]:
        event = ExecuteTransform(query_inputs=())
        for number, version in enumerate(self.versions):
            asked = a_transform(a_dataset(0 if self.is_one_query else number))
            asked = replace(asked, transform=replace(asked.transform, version=version))
            state = a_chain(a_seed(kind=DatasetKind.Derivative), asked).state
            yield StoredTransform(
                block_hash=a_hash(version),
                block=a_block(state, event),
                event=event,
                state=state,
            )

    def run(
        self, stored: StoredTransform, *, alias: str, scratch: Path, on_progress: OnProgress
    ) -> TransformResponseSuccess:
        assert stored.state.transform is not None
        version = stored.state.transform.transform.version
        if version != INSTALLED:
            raise EngineNotAvailable(text=f"the transform requires {version}, but this engine is {INSTALLED}")
        for stage in ("", "begun", "running"):
            on_progress(EngineProgress(stage=stage))
            time.sleep(self.seconds)
        if isinstance(self.gives, Exception):
            raise self.gives
        return self.gives


def replayed(
    *versions: str,
    gives: TransformResponseSuccess | Exception | None = None,
    most: float = 60.0,
    seconds: float = 0.0,
    is_one_query: bool = False,
) -> list[tuple[int, Problem | None]]:
    story = Story()
    replay = Replay(story.datasets, story.engine, TARGET, story.home / "keys", most)
    gives = gives or TransformResponseSuccess()
    replay._replayer = cast("Any", Transforms(versions, gives, seconds, is_one_query))
    return [(done, problem) for done, _, problem in replay.run([], None)]


def test_transforms_that_cannot_be_replayed_are_reported_once_and_the_rest_is_replayed() -> None:
    steps = replayed("old", "old", INSTALLED, "older", INSTALLED)
    assert [(done, problem and problem.kind) for done, problem in steps] == [
        (0, Damage.ENGINE_NOT_AVAILABLE),
        (1, None),
        (1, Damage.ENGINE_NOT_AVAILABLE),
        (2, None),
    ]
    problem = steps[0][1]
    assert problem is not None
    assert (
        problem.text == "cannot be replayed on this node: the transform requires old, but this engine is new"
    )


def test_a_different_result_is_found_after_a_transform_that_cannot_be_replayed() -> None:
    other = TransformResponseSuccess(new_offset_interval=OffsetInterval(start=0, end=0))
    kinds = [problem.kind for _, problem in replayed("old", INSTALLED, gives=other) if problem is not None]
    assert kinds == [Damage.ENGINE_NOT_AVAILABLE, Damage.REPLAY_MISMATCH]


@pytest.mark.parametrize(
    "fault",
    [
        NotFound(what="a slice"),
        Damaged(file="data/a", why="it is not a regular file"),
        InputMismatch(dataset="input", text="other offsets"),
        ChainBroken(kind="missing", block="b", sequence_number=1, text="is missing"),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_a_replay_ends_where_an_input_differs_from_what_the_transform_read(fault: OdfError) -> None:
    ((done, problem),) = replayed(INSTALLED, INSTALLED, gives=fault)
    assert (done, problem and problem.kind) == (1, Damage.INPUT_MISSING)
    assert problem is not None
    assert str(fault) in problem.text


def test_a_transform_that_does_not_end_is_reported_and_the_rest_is_replayed() -> None:
    steps = replayed(INSTALLED, "old", INSTALLED, most=0.001, seconds=0.01)
    problems = [problem for _, problem in steps if problem is not None]
    assert [problem.kind for problem in problems] == [
        Damage.ENGINE_NOT_AVAILABLE,
        Damage.REPLAY_FAILED,
        Damage.REPLAY_FAILED,
    ]
    assert problems[1].text == (
        "not checked: the replay of this block did not finish within 0.001 s; raise ODF_QUERY_TIMEOUT_MS if its query "
        "is meant to take so long"
    )


@pytest.mark.parametrize("times", [9, 10, 30])
def test_a_query_whose_replay_fails_ten_times_in_a_row_is_given_up(times: int) -> None:
    steps = replayed(*[INSTALLED] * times, gives=QueryFailed(text="overflow"), is_one_query=True)
    problems = [problem for _, problem in steps if problem is not None]
    assert len(steps) == min(times, 10) + len(problems)
    assert [problem.kind for problem in problems] == [Damage.REPLAY_FAILED] * 2
    is_given_up = "those after it are not replayed, since 10 in a row fail" in problems[1].text
    assert is_given_up == (times >= 10)


@pytest.mark.parametrize(
    ("kinds", "word"),
    [
        ((), "valid"),
        ((Damage.ENGINE_NOT_AVAILABLE,), "not-replayable"),
        ((Damage.ENGINE_NOT_AVAILABLE, Damage.REPLAY_REFUSED), "not-checked"),
        ((Damage.REPLAY_FAILED, Damage.ENGINE_NOT_AVAILABLE), "not-checked"),
        ((Damage.REPLAY_REFUSED, Damage.REPLAY_MISMATCH), "invalid"),
        ((Damage.REPLAY_FAILED, Damage.REPLAY_MISMATCH), "invalid"),
        ((Damage.ENGINE_NOT_AVAILABLE, Damage.REPLAY_MISMATCH), "invalid"),
        ((Damage.REPLAY_MISMATCH,), "invalid"),
        ((Damage.ENGINE_NOT_AVAILABLE, Damage.DATA_DROPPED), "dropped"),
    ],
)
def test_the_verdict_has_a_distinct_name(kinds: tuple[Damage, ...], word: str) -> None:
    verdict = Verdict(head=None, problems=tuple(Problem(kind=kind) for kind in kinds), tally=Tally())
    assert _message(TARGET, verdict).verdict.verdict == word
