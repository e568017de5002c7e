"""Where an incremental verification begins: after the last good verdict."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from odf_testing.builders import (
    AChain,
    a_chain,
    a_checkpoint,
    a_dataset,
    a_derivative,
    a_hash,
    a_seed,
    a_step,
    a_transform,
    some_result,
)
from odf_testing.verifier import NOWHERE, Story
from structlog.testing import capture_logs

from odf_common.dataset.dataset_notes import dropped_blocks, forget_drop, note_drop
from odf_common.dataset.node_datasets import StoredDataset
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import DatasetKind, ExecuteTransform, ExecuteTransformInput, SetInfo
from odf_common.ports.store import CatalogEntry, ObjectKind
from odf_verifier.integrity import Link, check_chain
from odf_verifier.replay import Outcome, Replay, dropped_input
from odf_verifier.targets import Damage, Problem, Target, of_entry
from odf_verifier.verification import (
    REPLAY,
    OnCommit,
    Verdict,
    VerificationOptions,
    VerificationProgress,
    VerifiedHeads,
    Verifier,
)

SCOPE = VerificationOptions(incremental=True)


@pytest.fixture
def definitions(story: Story) -> AChain:
    """A dataset of definitions only, so that there are no objects to check."""
    made = a_chain(a_seed(), *(SetInfo(description=str(number)) for number in range(4)))
    story.put(made)
    return made


@pytest.mark.parametrize("count", [1, 3])
def test_only_later_blocks_are_checked(story: Story, definitions: AChain, count: int) -> None:
    assert story.verify(definitions, SCOPE).tally.blocks == 5
    for number in range(count):
        definitions.add(SetInfo(description=f"new {number}"))
    story.put(definitions)

    verdict = story.verify(definitions, SCOPE)

    assert (verdict.is_valid, verdict.tally.blocks) == (True, count)


def test_a_verification_logs_where_it_began_and_its_verdict(story: Story, definitions: AChain) -> None:
    story.verify(definitions, SCOPE)
    verified = definitions.state.head
    definitions.add(SetInfo(description="new"))
    story.put(definitions)

    with capture_logs() as logs:
        story.verify(definitions, SCOPE)

    began = [one["block"] for one in logs if one["event"] == "verifying from the last good verdict"]
    assert set(began) == {str(verified)}
    (ended,) = [one for one in logs if one["event"] == "verification ends"]
    assert (ended["log_level"], ended["verdict"], ended["blocks"]) == ("debug", "valid", 1)
    assert (ended["head"], ended["problems"]) == (str(definitions.state.head), [])
    assert ended["ms"] >= 0


def test_a_dataset_that_was_reset_is_checked_from_its_seed_and_then_incrementally(
    story: Story, definitions: AChain
) -> None:
    story.verify(definitions, SCOPE)
    kept = [SetInfo(description=str(number)) for number in range(2)]
    definitions = a_chain(a_seed(), *kept, SetInfo(description="another way"))
    story.put(definitions)

    verdicts = [story.verify(definitions, SCOPE) for _ in range(2)]

    assert [(one.is_valid, one.tally.blocks) for one in verdicts] == [(True, 4), (True, 0)]
    assert verdicts[0].head == definitions.state.head


def test_the_verdict_on_a_foreign_folder_is_not_one_on_the_local_dataset(
    story: Story, definitions: AChain
) -> None:
    for _ in range(2):
        assert story.verify(definitions, SCOPE, is_local=False).tally.blocks == 5
    assert story.verify(definitions, SCOPE).tally.blocks == 5


def test_a_chain_without_the_block_that_was_verified_last_is_damaged(
    story: Story, definitions: AChain
) -> None:
    other = a_chain(a_seed(), SetInfo(description="another way"))
    reader = StoredDataset(definitions.state.dataset_id, story.blobs, story.refs)
    target = Target(name="hourly", dataset=definitions.state.dataset_id, reader=reader, is_local=True)

    links, problems = check_chain(target, since=other.state)

    assert [link.hash for link in links] == [block.hash for block in definitions.blocks]
    (problem,) = problems
    assert (problem.kind, problem.block) == (Damage.RULE_VIOLATED, definitions.state.head)
    assert problem.text == "the last verified block is no longer in the chain"
    assert check_chain(target, since=definitions.state) == ([], [])


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
    story: Story, definitions: AChain
) -> None:
    verifier = Asked(story, stop := threading.Event())
    on_commit = OnCommit(verifier)
    for _ in range(2):
        on_commit.add(
            of_entry(story.datasets, CatalogEntry(alias="cities", dataset_id=definitions.state.dataset_id))
        )

    on_commit.run(stop)

    assert verifier.asked == [("cities", VerificationOptions(incremental=True, reads_records=False))]


def test_a_dataset_without_a_head_is_damaged(story: Story) -> None:
    verdict = story.verify(a_chain(), SCOPE)
    assert [one.kind for one in verdict.problems] == [Damage.HEAD_UNREADABLE]
    assert verdict.head is None


def test_by_default_everything_is_checked_again(story: Story, definitions: AChain) -> None:
    for options in (SCOPE, VerificationOptions()):
        assert story.verify(definitions, options).tally.blocks == 5
    assert story.verify(definitions, SCOPE).tally.blocks == 0


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


def test_a_replay_begins_where_the_last_one_ended(
    story: Story, definitions: AChain, replayed: Replayed
) -> None:
    blocks = []
    for replay in (True, False, True, True):
        blocks.append(
            story.verify(definitions, VerificationOptions(incremental=True, replay=replay)).tally.blocks
        )
        definitions.add(SetInfo(description=f"new {len(blocks)}"))
        story.put(definitions)
    assert blocks == [5, 1, 1, 1]
    assert replayed.blocks == [5, 2, 1]


def test_what_a_replay_finds_is_a_problem_and_found_again(
    story: Story, definitions: AChain, replayed: Replayed
) -> None:
    replayed.found = Problem(kind=Damage.REPLAY_MISMATCH, text="other records")
    for _ in range(2):
        verdict = story.verify(definitions, SCOPE)
        assert (verdict.problems, verdict.tally.transforms) == ((replayed.found,), 2)
        assert verdict.tally.blocks == 5
    replayed.found = None
    assert story.verify(definitions, SCOPE).is_valid


def test_progress_of_the_replay_is_reported_before_the_verdict(
    story: Story, definitions: AChain, replayed: Replayed
) -> None:
    replayed.found = Problem(kind=Damage.REPLAY_MISMATCH, text="other records")
    target = of_entry(story.datasets, CatalogEntry(alias="cities", dataset_id=definitions.state.dataset_id))
    *steps, verdict = story.verifier.verify(target, VerificationOptions())
    assert steps == [VerificationProgress(phase=REPLAY, done=done, total=2) for done in (1, 2)]
    assert isinstance(verdict, Verdict)


def test_nothing_is_replayed_on_damage_or_in_a_foreign_folder(
    story: Story, definitions: AChain, replayed: Replayed
) -> None:
    assert story.verify(definitions, SCOPE, is_local=False).is_valid
    story.blobs.remove(definitions.state.dataset_id, ObjectKind.BLOCK, [definitions.blocks[2].hash])
    assert not story.verify(definitions, VerificationOptions()).is_valid
    assert replayed.blocks == []


INPUT = a_dataset("input")
INTEGRITY_ONLY = VerificationOptions(replay=False)


@pytest.fixture
def chain(story: Story) -> AChain:
    """A derivative of two steps with checkpoints, none of whose objects is stored."""
    made = a_chain(a_seed(kind=DatasetKind.Derivative), a_transform(INPUT))
    for _ in range(2):
        extend(story, made)
    return made


def extend(story: Story, chain: AChain) -> None:
    past = chain.state
    chain.add(
        ExecuteTransform(
            query_inputs=(a_step(past, INPUT, past.sequence_number, past.sequence_number),),
            prev_checkpoint=None if past.checkpoint is None else past.checkpoint.physical_hash,
            prev_offset=past.last_offset,
            new_checkpoint=a_checkpoint(past.sequence_number),
        )
    )
    story.put(chain)


def test_lost_data_is_damage(story: Story, chain: AChain) -> None:
    verdict = story.verify(chain, INTEGRITY_ONLY)
    assert verdict.word == "invalid"
    assert [one.kind for one in verdict.problems] == [Damage.OBJECT_MISSING] * 2


def test_each_lost_object_of_a_block_is_damage(story: Story) -> None:
    chain = a_derivative(INPUT)
    derived = some_result(chain.state, a_step(chain.state, INPUT, 1, 9))
    assert derived.new_data is not None
    story.put(chain.add(replace(derived, new_checkpoint=a_checkpoint())))

    problems = story.verify(chain, INTEGRITY_ONLY).problems

    assert {one.block for one in problems} == {chain.state.head}
    assert [one.object for one in problems] == [derived.new_data.physical_hash, a_checkpoint().physical_hash]


def test_a_copy_that_lost_data_is_to_be_pulled_again(story: Story, chain: AChain) -> None:
    texts = [one.text for one in story.verify(chain, INTEGRITY_ONLY).problems]
    assert [
        text.endswith("`odf pull URL --as hourly --recheck` fetches lost files again") for text in texts
    ] == [
        True,
        False,
    ]
    (story.home / "keys").mkdir()
    (story.home / "keys" / chain.state.dataset_id.folder).touch()
    assert [one.text for one in story.verify(chain, INTEGRITY_ONLY).problems] == [
        "missing in checkpoints"
    ] * 2


def test_dropped_data_is_reported_once_with_the_command_that_rebuilds_it(story: Story, chain: AChain) -> None:
    note_drop(story.blobs, chain.state.dataset_id, chain.state.head)
    verdict = story.verify(chain, INTEGRITY_ONLY)
    (problem,) = verdict.problems
    assert (verdict.word, problem.kind) == ("dropped", Damage.DATA_DROPPED)
    assert problem.text == "its data was dropped; `odf pull hourly` recomputes it"


def test_other_damage_of_a_dropped_dataset_is_reported_with_the_drop(story: Story, chain: AChain) -> None:
    dataset = chain.state.dataset_id
    note_drop(story.blobs, dataset, chain.state.head)
    story.blobs.put(dataset, ObjectKind.SIGNATURE, chain.state.head, b"{}")

    verdict = story.verify(chain, INTEGRITY_ONLY)

    assert verdict.word == "invalid"
    assert [one.kind for one in verdict.problems] == [Damage.SIGNATURE_INVALID, Damage.DATA_DROPPED]


def test_data_lost_after_a_drop_is_damage(story: Story, chain: AChain) -> None:
    note_drop(story.blobs, chain.state.dataset_id, chain.state.head)
    extend(story, chain)
    verdict = story.verify(chain, INTEGRITY_ONLY)
    assert verdict.word == "invalid"
    assert [one.kind for one in verdict.problems] == [Damage.OBJECT_MISSING, Damage.DATA_DROPPED]
    assert verdict.problems[0].block == chain.state.head


def test_a_missing_or_unreadable_note_excuses_nothing(story: Story, chain: AChain) -> None:
    dataset = chain.state.dataset_id
    story.blobs.set_note(dataset, "dropped", "yes")
    assert story.verify(chain, INTEGRITY_ONLY).word == "invalid"
    note_drop(story.blobs, dataset, chain.state.head)
    forget_drop(story.blobs, dataset)
    assert story.verify(chain, INTEGRITY_ONLY).word == "invalid"
    assert dropped_blocks(story.blobs, dataset) is None


def test_a_note_does_not_apply_to_a_foreign_folder(story: Story, chain: AChain) -> None:
    note_drop(story.blobs, chain.state.dataset_id, chain.state.head)
    verdict = story.verify(chain, INTEGRITY_ONLY, is_local=False)
    assert verdict.word == "invalid"
    assert [one.text for one in verdict.problems] == ["missing in checkpoints"] * 2, (
        "it cannot be pulled again"
    )


def test_an_input_that_was_dropped_is_named(story: Story, chain: AChain) -> None:
    root = a_chain(a_seed(dataset=INPUT))
    story.put(root, name="flights")
    seen = a_step(chain.state, INPUT, 0, 0)
    event = ExecuteTransform(query_inputs=(replace(seen, new_block_hash=root.state.head),))
    assert dropped_input(story.datasets, event) is None
    note_drop(story.blobs, INPUT, root.state.head)
    assert dropped_input(story.datasets, event) == "flights"
    assert dropped_input(story.datasets, ExecuteTransform(query_inputs=(seen,))) is None
    root.add(SetInfo(description="since then"))
    story.put(root)
    later = ExecuteTransform(query_inputs=(replace(seen, new_block_hash=root.state.head),))
    assert dropped_input(story.datasets, later) is None


def test_a_dataset_that_lost_only_data_added_after_a_drop_is_not_reported_as_dropped(
    story: Story, chain: AChain
) -> None:
    note_drop(story.blobs, chain.state.dataset_id, chain.blocks[1].hash)
    verdict = story.verify(chain, INTEGRITY_ONLY)
    assert [one.kind for one in verdict.problems] == [Damage.OBJECT_MISSING] * 2


def test_a_dropped_input_is_found_after_unavailable_ones(story: Story, chain: AChain) -> None:
    root, elsewhere = a_chain(a_seed(dataset=INPUT)), a_dataset("elsewhere")
    story.put(root, name="flights")
    story.put(a_chain(a_seed(dataset=a_dataset("other"))), name="other")
    note_drop(story.blobs, INPUT, root.state.head)
    read = ((elsewhere, a_hash(1)), (INPUT, None), (INPUT, a_hash(2)), (a_dataset("other"), root.state.head))
    steps = [ExecuteTransformInput(dataset_id=one, new_block_hash=block) for one, block in read]
    unknown = ExecuteTransform(query_inputs=tuple(steps))
    assert dropped_input(story.datasets, unknown) is None
    steps.append(ExecuteTransformInput(dataset_id=INPUT, new_block_hash=root.state.head))
    assert dropped_input(story.datasets, replace(unknown, query_inputs=tuple(steps))) == "flights"


DATASET = DatasetId.of_key(bytes(32))
A, B = Multihash.sha3(b"a" * 32), Multihash.sha3(b"b" * 32)


def test_phases_are_remembered_separately(tmp_path: Path) -> None:
    verified = VerifiedHeads(tmp_path / "verified")
    verified.remember(DATASET, {"integrity": A, "replay": A})
    verified.remember(DATASET, {"integrity": B})
    again = VerifiedHeads(tmp_path / "verified")
    assert (again.head(DATASET, "integrity"), again.head(DATASET, "replay")) == (B, A)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"integrity": 1}', b'{"integrity": "f00"}'])
def test_a_spoilt_file_means_nothing_is_known_and_is_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / f"{DATASET.folder}.json").write_bytes(content)
    verified = VerifiedHeads(tmp_path)
    assert verified.head(DATASET, "integrity") is None
    verified.remember(DATASET, {"integrity": A})
    assert verified.head(DATASET, "integrity") == A
