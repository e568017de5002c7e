"""Derivatives of records that their inputs no longer have are invalid, although every transform can be replayed."""

import pytest
from odf_testing.builders import AChain, a_chain, a_dataset, a_hash, a_seed, a_time, a_transform
from odf_testing.verifier import Story

from odf_common.adapters.local.key_files import keep_dataset_key
from odf_common.identity.dataset_refs import HEAD
from odf_common.identity.keys import generate
from odf_common.metadata.events import DatasetKind, ExecuteTransform, ExecuteTransformInput, SetInfo
from odf_verifier.replay import Outcome, Replay
from odf_verifier.targets import Damage
from odf_verifier.verification import VerificationOptions

INPUT = a_dataset("input")
SCOPE = VerificationOptions()


@pytest.fixture(autouse=True)
def _replayable(monkeypatch: pytest.MonkeyPatch) -> None:
    def replays(*_: object) -> list[Outcome]:
        return [(1, 1, None)]  # as on a node: blocks removed by a reset stay in the store

    monkeypatch.setattr(Replay, "run", replays)


@pytest.fixture
def root(story: Story) -> AChain:
    """A root of three blocks."""
    made = a_chain(a_seed(dataset=INPUT), SetInfo(description="a"), SetInfo(description="b"))
    story.put(made, name="flights")
    return made


@pytest.fixture
def copy(story: Story, root: AChain) -> AChain:
    """A derivative of this node whose only transform has read all of the root."""
    key = generate()
    keep_dataset_key(story.home / "keys", key)
    made = a_chain(a_seed(kind=DatasetKind.Derivative, dataset=key.dataset_id), a_transform(INPUT))
    read = ExecuteTransformInput(dataset_id=INPUT, new_block_hash=root.state.head)
    made.add(ExecuteTransform(query_inputs=(read,), new_watermark=a_time()))
    story.put(made)
    return made


def reset(story: Story, root: AChain) -> None:
    story.put(root, to=root.blocks[-2].hash)


def test_a_derivative_of_existing_records_is_valid(story: Story, root: AChain, copy: AChain) -> None:
    assert story.verify(copy, SCOPE).word == "valid"
    root.add(SetInfo(description="c"))
    story.put(root)
    assert story.verify(copy, SCOPE).word == "valid"


def test_an_input_that_was_reset_is_named_with_advice(story: Story, root: AChain, copy: AChain) -> None:
    read = root.state.head
    reset(story, root)
    verdict = story.verify(copy, SCOPE)
    (problem,) = verdict.problems
    assert (verdict.word, problem.kind) == ("invalid", Damage.INPUT_DIVERGED)
    assert f"it has read block {read} of flights" in problem.text
    assert "`odf pull --reset-derivatives hourly`" in problem.text
    assert story.verify(copy, VerificationOptions(replay=False)).is_valid


def test_a_copy_is_to_be_pulled_again(story: Story, root: AChain, copy: AChain) -> None:
    reset(story, root)
    (story.home / "keys" / copy.state.dataset_id.folder).unlink()
    (problem,) = story.verify(copy, SCOPE).problems
    assert "`odf pull URL --as hourly`" in problem.text
    assert "--reset-derivatives" not in problem.text


def test_an_unavailable_input_is_no_finding(story: Story, root: AChain, copy: AChain) -> None:
    reset(story, root)
    story.catalog.remove("flights")
    assert story.verify(copy, SCOPE).is_valid


def test_an_input_without_a_head_is_no_finding(story: Story, copy: AChain) -> None:
    story.refs.remove(INPUT, HEAD, expected=None)
    assert story.verify(copy, SCOPE).is_valid


def test_unavailable_inputs_do_not_hide_others(story: Story, root: AChain) -> None:
    elsewhere, unread, unstored, newest = (
        a_dataset(name) for name in ("elsewhere", "unread", "unstored", "newest")
    )
    inputs = (elsewhere, unread, unstored, newest, INPUT)
    for number, dataset in enumerate((unread, unstored, newest)):
        story.put(a_chain(a_seed(dataset=dataset)), name=f"input{number}")
    made = a_chain(a_seed(kind=DatasetKind.Derivative), a_transform(*inputs))
    read = {
        elsewhere: a_hash("of another node"),
        unread: None,
        unstored: a_hash("not stored"),
        newest: story.refs.head(newest),
        INPUT: root.state.head,
    }
    steps = tuple(ExecuteTransformInput(dataset_id=one, new_block_hash=read[one]) for one in inputs)
    made.add(ExecuteTransform(query_inputs=steps, new_watermark=a_time()))
    story.put(made)
    reset(story, root)
    (problem,) = story.verify(made, SCOPE).problems
    assert "of flights" in problem.text
