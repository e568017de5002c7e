"""Where a verification begins that looks only at what came since the last good verdict."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from odf_common.adapters.memory import MemoryBlobStore, MemoryRefStore
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import SetInfo
from odf_common.ports.store import ObjectKind
from odf_common.runtime.environment import Environment
from odf_common.runtime.states import ChainStates, NoStateCache
from odf_common.testing.builders import AChain, a_chain, a_seed
from odf_verifier.targets import Target
from odf_verifier.verification import Scope, Verdict, Verifier


@dataclass
class Story:
    """A dataset of definitions only, so that there are no objects to look at."""

    verifier: Verifier
    blobs: MemoryBlobStore
    refs: MemoryRefStore
    chain: AChain

    def move(self, to: Multihash) -> None:
        """Move the head, to whatever block."""
        dataset = self.chain.state.dataset_id
        for name, raw in self.chain.store.items():
            self.blobs.put(dataset, ObjectKind.BLOCK, name, raw)
        self.refs.compare_and_set(dataset, expected=self.refs.head(dataset), new=to)

    def verify(self) -> Verdict:
        dataset = self.chain.state.dataset_id
        target = Target(name="flights", dataset=dataset, blobs=self.blobs, refs=self.refs, is_local=True)
        *_, verdict = self.verifier.verify(target, Scope(incremental=True))
        assert isinstance(verdict, Verdict)
        return verdict


@pytest.fixture
def story(tmp_path: Path) -> Story:
    refs = MemoryRefStore()
    blobs = MemoryBlobStore(refs)
    states = ChainStates(blobs, refs, NoStateCache())
    env = SimpleNamespace(
        settings=SimpleNamespace(home=tmp_path),
        blobs=blobs,
        refs=refs,
        states=states,
        catalog=None,
        engine=None,
    )
    chain = a_chain(a_seed(), *(SetInfo(description=str(number)) for number in range(4)))
    made = Story(verifier=Verifier(cast("Environment", env)), blobs=blobs, refs=refs, chain=chain)
    made.move(chain.state.head)
    return made


def test_only_what_came_since_is_looked_at(story: Story) -> None:
    assert story.verify().tally.blocks == 5
    story.chain.add(SetInfo(description="new"))
    story.move(story.chain.state.head)

    verdict = story.verify()

    assert (verdict.is_valid, verdict.tally.blocks) == (True, 1)


def test_a_dataset_that_was_reset_is_looked_at_from_its_seed_and_then_goes_on(story: Story) -> None:
    story.verify()
    kept = [SetInfo(description=str(number)) for number in range(2)]
    story.chain = a_chain(a_seed(), *kept, SetInfo(description="another way"))
    story.move(story.chain.state.head)

    verdicts = [story.verify() for _ in range(2)]

    assert [(one.is_valid, one.tally.blocks) for one in verdicts] == [(True, 4), (True, 0)]
    assert verdicts[0].head == story.chain.state.head
