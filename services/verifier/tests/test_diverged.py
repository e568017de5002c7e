"""Derivatives that have read what their inputs no longer have are not valid, though every transform can be replayed."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from odf_common.adapters.local.keys import keep_dataset_key
from odf_common.adapters.memory import MemoryBlobStore, MemoryCatalog, MemoryRefStore
from odf_common.hashing.multihash import Multihash
from odf_common.identity.keys import generate
from odf_common.metadata.events import DatasetKind, ExecuteTransform, ExecuteTransformInput, SetInfo
from odf_common.ports.store import CatalogEntry, ObjectKind
from odf_common.runtime.environment import Environment
from odf_common.runtime.states import ChainStates, NoStateCache
from odf_common.testing.builders import AChain, a_chain, a_dataset, a_seed, a_time, a_transform
from odf_verifier.replay import Outcome, Replay
from odf_verifier.report import Damage
from odf_verifier.targets import Target
from odf_verifier.verification import Scope, Verdict, Verifier

INPUT = a_dataset("input")


@dataclass
class Story:
    """A root of three blocks, and a derivative whose only transform has read all of them."""

    env: Environment
    home: Path
    blobs: MemoryBlobStore
    refs: MemoryRefStore
    root: AChain
    copy: AChain

    def put(self, chain: AChain, head: Multihash | None = None) -> None:
        dataset = chain.state.dataset_id
        for name, raw in chain.store.items():
            self.blobs.put(dataset, ObjectKind.BLOCK, name, raw)
        expected = self.refs.head(dataset)
        self.refs.compare_and_set(dataset, expected=expected, new=head or chain.state.head)

    def verify(self, *, replay: bool = True) -> Verdict:
        target = Target(
            name="hourly", dataset=self.copy.state.dataset_id, blobs=self.blobs, refs=self.refs, is_local=True
        )
        *_, verdict = Verifier(self.env).verify(target, Scope(replay=replay))
        assert isinstance(verdict, Verdict)
        return verdict


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Story:
    refs = MemoryRefStore()
    blobs = MemoryBlobStore(refs)
    states = ChainStates(blobs, refs, NoStateCache())
    catalog = MemoryCatalog()
    catalog.add(CatalogEntry(alias="flights", dataset_id=INPUT))
    env = SimpleNamespace(
        settings=SimpleNamespace(home=tmp_path), blobs=blobs, refs=refs, states=states, catalog=catalog, engine=None
    )  # fmt: skip
    root = a_chain(a_seed(dataset=INPUT), SetInfo(description="a"), SetInfo(description="b"))
    key = generate()
    keep_dataset_key(tmp_path / "keys", key)
    copy = a_chain(a_seed(kind=DatasetKind.Derivative, dataset=key.dataset_id), a_transform(INPUT))
    made = Story(env=cast("Environment", env), home=tmp_path, blobs=blobs, refs=refs, root=root, copy=copy)
    head = root.state.head
    copy.add(
        ExecuteTransform(
            query_inputs=(ExecuteTransformInput(dataset_id=INPUT, new_block_hash=head),),
            new_watermark=a_time(),
        )
    )
    made.put(root)
    made.put(copy)

    def replays(*_: object) -> list[Outcome]:
        return [(1, 1, None)]  # as it does: blocks that a reset forgets stay in the store

    monkeypatch.setattr(Replay, "run", replays)
    return made


def reset(story: Story) -> None:
    story.put(story.root, a_chain(a_seed(dataset=INPUT), SetInfo(description="a")).state.head)


def test_what_its_inputs_have_is_valid(story: Story) -> None:
    assert story.verify().word == "valid"
    story.root.add(SetInfo(description="c"))
    story.put(story.root)
    assert story.verify().word == "valid"


def test_an_input_that_was_reset_is_named_with_what_to_do(story: Story) -> None:
    read = story.root.state.head
    reset(story)
    verdict = story.verify()
    (problem,) = verdict.problems
    assert (verdict.word, problem.kind) == ("invalid", Damage.INPUT_DIVERGED)
    assert f"it has read block {read} of flights" in problem.text
    assert "`odf pull --reset-derivatives hourly`" in problem.text
    assert story.verify(replay=False).is_valid


def test_a_copy_is_to_be_pulled_again(story: Story) -> None:
    reset(story)
    (story.home / "keys" / story.copy.state.dataset_id.folder).unlink()
    (problem,) = story.verify().problems
    assert "`odf pull URL --as hourly`" in problem.text
    assert "--reset-derivatives" not in problem.text


def test_an_input_that_is_not_here_says_nothing(story: Story) -> None:
    reset(story)
    cast("MemoryCatalog", story.env.catalog).remove("flights")
    assert story.verify().is_valid
