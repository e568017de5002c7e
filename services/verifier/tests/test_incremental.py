"""Where an incremental verification begins: after the last good verdict."""

import threading
from collections.abc import Iterator

import pytest
from odf_testing.builders import AChain, a_chain, a_seed
from odf_testing.verifier import NOWHERE, Story
from structlog.testing import capture_logs

from odf_common.dataset.node_datasets import StoredDataset
from odf_common.metadata.events import SetInfo
from odf_common.ports.store import CatalogEntry, ObjectKind
from odf_verifier.integrity import Link, check_chain
from odf_verifier.replay import Outcome, Replay
from odf_verifier.targets import Damage, Problem, Target, of_entry
from odf_verifier.verification import (
    REPLAY,
    OnCommit,
    Verdict,
    VerificationOptions,
    VerificationProgress,
    Verifier,
)

SCOPE = VerificationOptions(incremental=True)


@pytest.fixture
def chain(story: Story) -> AChain:
    """A dataset of definitions only, so that there are no objects to check."""
    made = a_chain(a_seed(), *(SetInfo(description=str(number)) for number in range(4)))
    story.put(made)
    return made


@pytest.mark.parametrize("count", [1, 3])
def test_only_later_blocks_are_checked(story: Story, chain: AChain, count: int) -> None:
    assert story.verify(chain, SCOPE).tally.blocks == 5
    for number in range(count):
        chain.add(SetInfo(description=f"new {number}"))
    story.put(chain)

    verdict = story.verify(chain, SCOPE)

    assert (verdict.is_valid, verdict.tally.blocks) == (True, count)


def test_a_verification_logs_where_it_began_and_its_verdict(story: Story, chain: AChain) -> None:
    story.verify(chain, SCOPE)
    verified = chain.state.head
    chain.add(SetInfo(description="new"))
    story.put(chain)

    with capture_logs() as logs:
        story.verify(chain, SCOPE)

    began = [one["block"] for one in logs if one["event"] == "verifying from the last good verdict"]
    assert set(began) == {str(verified)}
    (ended,) = [one for one in logs if one["event"] == "verification ends"]
    assert (ended["log_level"], ended["verdict"], ended["blocks"]) == ("debug", "valid", 1)
    assert (ended["head"], ended["problems"]) == (str(chain.state.head), [])
    assert ended["ms"] >= 0


def test_a_dataset_that_was_reset_is_checked_from_its_seed_and_then_incrementally(
    story: Story, chain: AChain
) -> None:
    story.verify(chain, SCOPE)
    kept = [SetInfo(description=str(number)) for number in range(2)]
    chain = a_chain(a_seed(), *kept, SetInfo(description="another way"))
    story.put(chain)

    verdicts = [story.verify(chain, SCOPE) for _ in range(2)]

    assert [(one.is_valid, one.tally.blocks) for one in verdicts] == [(True, 4), (True, 0)]
    assert verdicts[0].head == chain.state.head


def test_the_verdict_on_a_foreign_folder_is_not_one_on_the_local_dataset(story: Story, chain: AChain) -> None:
    for _ in range(2):
        assert story.verify(chain, SCOPE, is_local=False).tally.blocks == 5
    assert story.verify(chain, SCOPE).tally.blocks == 5


def test_a_chain_without_the_block_that_was_verified_last_is_damaged(story: Story, chain: AChain) -> None:
    other = a_chain(a_seed(), SetInfo(description="another way"))
    reader = StoredDataset(chain.state.dataset_id, story.blobs, story.refs)
    target = Target(name="hourly", dataset=chain.state.dataset_id, reader=reader, is_local=True)

    links, problems = check_chain(target, since=other.state)

    assert [link.hash for link in links] == [block.hash for block in chain.blocks]
    (problem,) = problems
    assert (problem.kind, problem.block) == (Damage.RULE_VIOLATED, chain.state.head)
    assert problem.text == "the last verified block is no longer in the chain"
    assert check_chain(target, since=chain.state) == ([], [])


class Asked(Verifier):
    """Records its requests, and sets `stop`."""

    def __init__(self, story: Story, stop: threading.Event) -> None:
        super().__init__(story.datasets, story.engine, NOWHERE)
        self.asked: list[tuple[str, VerificationOptions]] = []
        self._stop = stop

    def verify(
        self, target: Target, options: VerificationOptions
    ) -> Iterator[VerificationProgress | Verdict]:
        self.asked.append((target.name, options))
        self._stop.set()
        return iter(())


def test_after_a_commit_only_new_blocks_are_checked_and_no_records_are_read(
    story: Story, chain: AChain
) -> None:
    verifier = Asked(story, stop := threading.Event())
    on_commit = OnCommit(verifier)
    for _ in range(2):
        on_commit.add(
            of_entry(story.datasets, CatalogEntry(alias="cities", dataset_id=chain.state.dataset_id))
        )

    on_commit.run(stop)

    assert verifier.asked == [("cities", VerificationOptions(incremental=True, reads_records=False))]


def test_a_dataset_without_a_head_is_damaged(story: Story) -> None:
    verdict = story.verify(a_chain(), SCOPE)
    assert [one.kind for one in verdict.problems] == [Damage.HEAD_UNREADABLE]
    assert verdict.head is None


def test_by_default_everything_is_checked_again(story: Story, chain: AChain) -> None:
    for options in (SCOPE, VerificationOptions()):
        assert story.verify(chain, options).tally.blocks == 5
    assert story.verify(chain, SCOPE).tally.blocks == 0


class Replayed:
    """Fake replay: records how many blocks it is given, and returns the configured problems."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.blocks: list[int] = []
        self.found: Problem | None = None
        monkeypatch.setattr(Replay, "run", lambda _, links, __: self._run(links))

    def _run(self, links: list[Link]) -> list[Outcome]:
        self.blocks.append(len(links))
        return [(1, 2, None), (2, 2, self.found)]


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> Replayed:
    return Replayed(monkeypatch)


def test_a_replay_begins_where_the_last_one_ended(story: Story, chain: AChain, replayed: Replayed) -> None:
    blocks = []
    for replay in (True, False, True, True):
        blocks.append(story.verify(chain, VerificationOptions(incremental=True, replay=replay)).tally.blocks)
        chain.add(SetInfo(description=f"new {len(blocks)}"))
        story.put(chain)
    assert blocks == [5, 1, 1, 1]
    assert replayed.blocks == [5, 2, 1]


def test_what_a_replay_finds_is_a_problem_and_found_again(
    story: Story, chain: AChain, replayed: Replayed
) -> None:
    replayed.found = Problem(kind=Damage.REPLAY_MISMATCH, text="other records")
    for _ in range(2):
        verdict = story.verify(chain, SCOPE)
        assert (verdict.problems, verdict.tally.transforms) == ((replayed.found,), 2)
        assert verdict.tally.blocks == 5
    replayed.found = None
    assert story.verify(chain, SCOPE).is_valid


def test_progress_of_the_replay_is_reported_before_the_verdict(
    story: Story, chain: AChain, replayed: Replayed
) -> None:
    replayed.found = Problem(kind=Damage.REPLAY_MISMATCH, text="other records")
    target = of_entry(story.datasets, CatalogEntry(alias="cities", dataset_id=chain.state.dataset_id))
    *steps, verdict = story.verifier.verify(target, VerificationOptions())
    assert steps == [VerificationProgress(phase=REPLAY, done=done, total=2) for done in (1, 2)]
    assert isinstance(verdict, Verdict)


def test_nothing_is_replayed_on_damage_or_in_a_foreign_folder(
    story: Story, chain: AChain, replayed: Replayed
) -> None:
    assert story.verify(chain, SCOPE, is_local=False).is_valid
    story.blobs.remove(chain.state.dataset_id, ObjectKind.BLOCK, [chain.blocks[2].hash])
    assert not story.verify(chain, VerificationOptions()).is_valid
    assert replayed.blocks == []
