"""Data that was dropped is told apart from data that was lost."""

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from odf_common.adapters.memory import MemoryBlobStore, MemoryCatalog, MemoryRefStore
from odf_common.metadata.events import DatasetKind, ExecuteTransform
from odf_common.ports.store import CatalogEntry, ObjectKind
from odf_common.runtime.drops import dropped_line, forget_drop, note_drop
from odf_common.runtime.environment import Environment
from odf_common.runtime.states import ChainStates, NoStateCache
from odf_common.testing.builders import (
    AChain,
    a_chain,
    a_checkpoint,
    a_dataset,
    a_seed,
    a_step,
    a_transform,
)
from odf_verifier.dropped import dropped_input
from odf_verifier.report import Damage
from odf_verifier.targets import Target
from odf_verifier.verification import Scope, Verdict, Verifier

INPUT = a_dataset("input")


@dataclass
class Story:
    """A derivative of two steps with checkpoints, none of whose objects is here."""

    env: Environment
    blobs: MemoryBlobStore
    refs: MemoryRefStore
    chain: AChain

    def extend(self) -> None:
        past = self.chain.state
        self.chain.add(
            ExecuteTransform(
                query_inputs=(a_step(past, INPUT, past.sequence_number, past.sequence_number),),
                prev_checkpoint=None if past.checkpoint is None else past.checkpoint.physical_hash,
                prev_offset=past.last_offset,
                new_checkpoint=a_checkpoint(past.sequence_number),
            )
        )
        dataset = past.dataset_id
        for name, raw in self.chain.store.items():
            self.blobs.put(dataset, ObjectKind.BLOCK, name, raw)
        self.refs.compare_and_set(dataset, expected=self.refs.head(dataset), new=self.chain.state.head)

    def verify(self, *, is_local: bool = True) -> Verdict:
        dataset = self.chain.state.dataset_id
        target = Target(name="hourly", dataset=dataset, blobs=self.blobs, refs=self.refs, is_local=is_local)
        *_, verdict = Verifier(self.env).verify(target, Scope(replay=False))
        assert isinstance(verdict, Verdict)
        return verdict


@pytest.fixture
def story(tmp_path: Path) -> Story:
    refs = MemoryRefStore()
    blobs = MemoryBlobStore(refs)
    states = ChainStates(blobs, refs, NoStateCache())
    catalog = MemoryCatalog()
    catalog.add(CatalogEntry(alias="flights", dataset_id=INPUT))
    env = SimpleNamespace(
        settings=SimpleNamespace(home=tmp_path), blobs=blobs, refs=refs, states=states, catalog=catalog
    )
    chain = a_chain(a_seed(kind=DatasetKind.Derivative), a_transform(INPUT))
    made = Story(env=cast("Environment", env), blobs=blobs, refs=refs, chain=chain)
    for _ in range(2):
        made.extend()
    return made


def test_lost_data_is_damage(story: Story) -> None:
    verdict = story.verify()
    assert verdict.word == "invalid"
    assert [one.kind for one in verdict.problems] == [Damage.OBJECT_MISSING] * 2


def test_a_copy_that_lost_data_is_to_be_pulled_again(story: Story, tmp_path: Path) -> None:
    texts = [one.text for one in story.verify().problems]
    assert [text.endswith("`odf pull URL --as hourly` brings again what was lost") for text in texts] == [
        True,
        False,
    ]
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / story.chain.state.dataset_id.folder).touch()
    assert [one.text for one in story.verify().problems] == ["not in checkpoints"] * 2


def test_dropped_data_is_told_once_with_what_makes_it_again(story: Story) -> None:
    note_drop(story.blobs, story.chain.state.dataset_id, story.chain.state.head)
    verdict = story.verify()
    (problem,) = verdict.problems
    assert (verdict.word, problem.kind) == ("dropped", Damage.DATA_DROPPED)
    assert problem.text == "its data was dropped; `odf pull hourly` makes it again"


def test_what_is_lost_after_a_drop_is_damage(story: Story) -> None:
    note_drop(story.blobs, story.chain.state.dataset_id, story.chain.state.head)
    story.extend()
    verdict = story.verify()
    assert verdict.word == "invalid"
    assert [one.kind for one in verdict.problems] == [Damage.OBJECT_MISSING, Damage.DATA_DROPPED]
    assert verdict.problems[0].block == story.chain.state.head


def test_a_note_that_was_taken_away_or_cannot_be_read_excuses_nothing(story: Story) -> None:
    dataset = story.chain.state.dataset_id
    story.blobs.set_note(dataset, "dropped", "yes")
    assert story.verify().word == "invalid"
    note_drop(story.blobs, dataset, story.chain.state.head)
    forget_drop(story.blobs, dataset)
    assert story.verify().word == "invalid"
    assert dropped_line(story.blobs, dataset) is None


def test_a_note_says_nothing_of_a_folder_elsewhere(story: Story) -> None:
    note_drop(story.blobs, story.chain.state.dataset_id, story.chain.state.head)
    assert story.verify(is_local=False).word == "invalid"


def test_an_input_that_was_dropped_is_named(story: Story) -> None:
    root = a_chain(a_seed(dataset=INPUT))
    for name, raw in root.store.items():
        story.blobs.put(INPUT, ObjectKind.BLOCK, name, raw)
    seen = a_step(story.chain.state, INPUT, 0, 0)
    event = ExecuteTransform(query_inputs=(replace(seen, new_block_hash=root.state.head),))
    assert dropped_input(story.env, event) is None
    note_drop(story.blobs, INPUT, root.state.head)
    assert dropped_input(story.env, event) == "flights"
    assert dropped_input(story.env, ExecuteTransform(query_inputs=(seen,))) is None
