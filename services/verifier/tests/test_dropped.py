"""Dropped data is distinguished from lost data."""

from dataclasses import replace

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
from odf_testing.verifier import Story

from odf_common.dataset.dataset_notes import dropped_blocks, forget_drop, note_drop
from odf_common.metadata.events import DatasetKind, ExecuteTransform, ExecuteTransformInput, SetInfo
from odf_common.ports.store import ObjectKind
from odf_verifier.explanations import dropped_input
from odf_verifier.targets import Damage
from odf_verifier.verification import VerificationOptions

INPUT = a_dataset("input")
SCOPE = VerificationOptions(replay=False)


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
    verdict = story.verify(chain, SCOPE)
    assert verdict.word == "invalid"
    assert [one.kind for one in verdict.problems] == [Damage.OBJECT_MISSING] * 2


def test_each_lost_object_of_a_block_is_damage(story: Story) -> None:
    chain = a_derivative(INPUT)
    derived = some_result(chain.state, a_step(chain.state, INPUT, 1, 9))
    assert derived.new_data is not None
    story.put(chain.add(replace(derived, new_checkpoint=a_checkpoint())))

    problems = story.verify(chain, SCOPE).problems

    assert {one.block for one in problems} == {chain.state.head}
    assert [one.object for one in problems] == [derived.new_data.physical_hash, a_checkpoint().physical_hash]


def test_a_copy_that_lost_data_is_to_be_pulled_again(story: Story, chain: AChain) -> None:
    texts = [one.text for one in story.verify(chain, SCOPE).problems]
    assert [
        text.endswith("`odf pull URL --as hourly --recheck` fetches lost files again") for text in texts
    ] == [
        True,
        False,
    ]
    (story.home / "keys").mkdir()
    (story.home / "keys" / chain.state.dataset_id.folder).touch()
    assert [one.text for one in story.verify(chain, SCOPE).problems] == ["missing in checkpoints"] * 2


def test_dropped_data_is_reported_once_with_the_command_that_rebuilds_it(story: Story, chain: AChain) -> None:
    note_drop(story.blobs, chain.state.dataset_id, chain.state.head)
    verdict = story.verify(chain, SCOPE)
    (problem,) = verdict.problems
    assert (verdict.word, problem.kind) == ("dropped", Damage.DATA_DROPPED)
    assert problem.text == "its data was dropped; `odf pull hourly` recomputes it"


def test_other_damage_of_a_dropped_dataset_is_reported_with_the_drop(story: Story, chain: AChain) -> None:
    dataset = chain.state.dataset_id
    note_drop(story.blobs, dataset, chain.state.head)
    story.blobs.put(dataset, ObjectKind.SIGNATURE, chain.state.head, b"{}")

    verdict = story.verify(chain, SCOPE)

    assert verdict.word == "invalid"
    assert [one.kind for one in verdict.problems] == [Damage.SIGNATURE_INVALID, Damage.DATA_DROPPED]


def test_data_lost_after_a_drop_is_damage(story: Story, chain: AChain) -> None:
    note_drop(story.blobs, chain.state.dataset_id, chain.state.head)
    extend(story, chain)
    verdict = story.verify(chain, SCOPE)
    assert verdict.word == "invalid"
    assert [one.kind for one in verdict.problems] == [Damage.OBJECT_MISSING, Damage.DATA_DROPPED]
    assert verdict.problems[0].block == chain.state.head


def test_a_missing_or_unreadable_note_excuses_nothing(story: Story, chain: AChain) -> None:
    dataset = chain.state.dataset_id
    story.blobs.set_note(dataset, "dropped", "yes")
    assert story.verify(chain, SCOPE).word == "invalid"
    note_drop(story.blobs, dataset, chain.state.head)
    forget_drop(story.blobs, dataset)
    assert story.verify(chain, SCOPE).word == "invalid"
    assert dropped_blocks(story.blobs, dataset) is None


def test_a_note_does_not_apply_to_a_foreign_folder(story: Story, chain: AChain) -> None:
    note_drop(story.blobs, chain.state.dataset_id, chain.state.head)
    verdict = story.verify(chain, SCOPE, is_local=False)
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
    verdict = story.verify(chain, SCOPE)
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
