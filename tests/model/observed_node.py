"""The node and its model: how an operation is run, killed or paused, and the invariants after each step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant
from odf_testing.actors import Actor
from odf_testing.coordinator import Coordinator
from tests.model.expected import Content, Expected
from tests.model.world import Ingest, World

from odf_common.errors import OdfError
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.store import CatalogEntry


@dataclass(frozen=True)
class Fate:
    """The fate of an operation: it runs, or is killed or stopped before a write."""

    kind: str
    writes: int


RUN: Final = Fate("run", 0)
Doubt = tuple[object, ...]


@dataclass
class Paused:
    """An operation that was stopped halfway; `end` is called when it has ended."""

    actor: Actor
    end: Callable[[], None]


class ObservedNode(RuleBasedStateMachine):
    """The node, its model, and the operation that is paused."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.world = World(self.patch)
        self.named: dict[DatasetId, str] = {}
        self.expected: dict[DatasetId, Expected] = {}
        self.doubts: list[Doubt] = []  # what may happen, or not
        self.paused: Paused | None = None
        self.count = 0

    def end(self) -> None:
        """Leave nothing of this run."""
        if self.paused is not None:
            self.paused.actor.kill()
        self.world.close()
        self.patch.undo()

    # Checks

    @invariant()
    def observe(self) -> None:
        """All events so far were expected, and the datasets have an expected content."""
        entries = self.world.entries()
        for dataset, entry in entries.items():
            if dataset not in self.named:
                self.expect("add", entry.alias)
                self.expected[dataset] = Expected(topics=entry.push_topics)
            elif self.named[dataset] != entry.alias:
                self.expect("rename", dataset, entry.alias)
            self.named[dataset] = entry.alias
            self.observe_topics(dataset, entry)
        for dataset in self.named.keys() - entries.keys():
            self.expect("delete", dataset)
            del self.named[dataset]
        for dataset in self.named:
            self.observe_content(dataset)

    def observe_topics(self, dataset: DatasetId, entry: CatalogEntry) -> None:
        expected = self.expected[dataset]
        for source, topic in entry.push_topics.items():
            if source not in expected.topics:
                self.expect("extend", dataset, source)
            else:
                assert expected.topics[source] == topic, "a source has another topic"
        assert expected.topics.keys() <= entry.push_topics.keys(), "a source has lost its topic"
        expected.topics = entry.push_topics

    def observe_content(self, dataset: DatasetId) -> Content:
        expected, world = self.expected[dataset], self.world
        content = expected.content(world.chain(dataset), world.kafka.values, world.letters)
        head = world.head(dataset)
        lost = expected.answered - content.files
        if head in expected.heads and lost:  # the head is back where it was
            self.expect("reset", dataset, head)
        elif lost:
            self.expect("reset", dataset)
        expected.answered -= lost
        if head not in expected.heads:
            expected.heads.append(head)
        return content

    # Operations, and what interrupts them

    def act(
        self, operation: Callable[[Coordinator], object], fate: Fate, doubts: Sequence[Doubt], *, must: bool
    ) -> bool:
        """Run an operation on a coordinator; return whether it ended without an error."""
        node = self.world.free()
        actor = Actor(lambda: operation(node))
        self.world.busy.append(node)

        def end() -> None:
            self.world.busy.remove(node)
            if actor.is_dead:
                self.world.replaced(node)

        is_alone = self.paused is None
        return self.play(actor, fate, doubts, end, must=must and is_alone)

    def send_file(self, dataset: DatasetId, key: str, fate: Fate) -> None:
        expected, ingest = self.expected[dataset], self.world.ingest
        resets = expected.resets
        actor = Actor(lambda: self.world.push(ingest, dataset, key, expected.files[key]))

        def answered() -> None:
            is_done = actor.is_over and not actor.is_dead and actor.error is None
            if is_done and expected.resets == resets:
                expected.answered.add(key)

        self.on_ingest(actor, ("push", dataset, key), answered, fate)

    def command(
        self, run: Callable[[Ingest, CatalogEntry], object], dataset: DatasetId, doubt: Doubt, fate: Fate
    ) -> bool:
        """Run a command about a source; return whether it ended without an error."""
        ingest, entry = self.world.ingest, self.world.entries()[dataset]
        return self.on_ingest(Actor(lambda: run(ingest, entry)), doubt, lambda: None, fate)

    def on_ingest(self, actor: Actor, doubt: Doubt, answered: Callable[[], None], fate: Fate) -> bool:
        ingest = self.world.ingest

        def end() -> None:
            answered()
            if actor.is_dead or ingest is not self.world.ingest:
                self.leave(ingest)
            elif ingest.reading.is_over:
                self.require_no_bug(ingest.reading)
                self.world.restart_ingest()

        is_done = self.play(actor, fate, [doubt], end, must=False)
        if self.paused is not None and self.paused.actor is actor:
            self.world.ingest = Ingest(self.world)
        return is_done

    def leave(self, ingest: Ingest) -> None:
        """Kill a process of ingest, which has been replaced or died."""
        if ingest is self.world.ingest:
            self.world.restart_ingest()
        elif not ingest.reading.is_over:
            ingest.reading.kill()

    def pause_ingest(self, ingest: Ingest, actor: Actor) -> None:
        """Leave ingest stopped halfway; another process takes over."""

        def end() -> None:
            if not actor.is_over:
                actor.kill()
            self.require_no_bug(actor)

        self.world.zombies.append(ingest)
        self.paused = Paused(actor, end)
        self.world.ingest = Ingest(self.world)

    def play(
        self, actor: Actor, fate: Fate, doubts: Sequence[Doubt], end: Callable[[], None], *, must: bool
    ) -> bool:
        self.doubts += doubts
        if fate.kind == "kill":
            actor.kill_after = fate.writes
        elif fate.kind == "pause" and self.paused is None:
            actor.pause_after = fate.writes
        actor.go()
        if not actor.is_over:

            def over() -> None:
                self.require_no_bug(actor)
                end()
                self.observe()
                self.forget(doubts)

            self.paused = Paused(actor, over)
            self.observe()
            return False
        end()
        self.require_no_bug(actor)
        self.observe()
        self.forget(doubts)
        if must and actor.error is not None:
            raise actor.error
        return not actor.is_dead and actor.error is None

    def forget(self, doubts: Sequence[Doubt]) -> None:
        for doubt in doubts:
            self.doubts.remove(doubt)

    def require_no_bug(self, actor: Actor) -> None:
        if actor.error is not None and not isinstance(actor.error, OdfError):
            raise actor.error

    def expect(self, kind: str, *what: object) -> None:
        """Add an event to the expected ones."""
        assert any(doubt[0] == kind and doubt[1 : 1 + len(what)] == what for doubt in self.doubts), (
            f"{kind} {what} was not asked for: {self.doubts}"
        )

    def finish_paused(self) -> None:
        """Let the paused operation run to completion."""
        paused, self.paused = self.paused, None
        assert paused is not None
        paused.actor.pause_after = None
        paused.actor.go()
        paused.end()
