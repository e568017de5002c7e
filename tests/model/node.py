"""The node and its model as a state machine: what may be done to it, and what has to hold after each step."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.model.world import RESCAN_SECONDS, Held, Ingest, World, manifest_of, message_of

from odf_common.chain.chain import iterate
from odf_common.errors import OdfError
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.testing.actors import Actor
from odf_coordinator.testing import Coordinator

NAMES: Final = ("a", "a.b", "x", "Y")
SOURCES: Final = ("b.c", "c")  # with the names, topics that would be called the same
QUIET_TURNS: Final = 12
MAX_TURNS: Final = 200
FAR_FUTURE: Final = 1e12  # seconds since the epoch


@dataclass(frozen=True)
class Fate:
    """What becomes of an operation: it runs, or is killed or stopped before a write."""

    kind: str
    writes: int


writes = st.one_of(st.integers(0, 6), st.integers(0, 14), st.integers(0, 45))
RUN: Final = Fate("run", 0)
picks = st.integers(0, 7)
counts = st.integers(1, 3)
names = st.sampled_from(NAMES)
Operation = tuple[Any, ...]  # the name of a method, and its arguments but for the fate
operations = st.one_of(
    st.tuples(st.just("add"), names, st.sampled_from(SOURCES)),
    st.tuples(st.just("rename"), picks, names),
    st.tuples(st.just("delete"), picks),
    st.tuples(st.just("reset"), picks, picks),
    st.tuples(st.just("push"), picks, counts),
    st.tuples(st.just("publish"), picks, counts),
    st.tuples(st.just("read"), st.integers(1, 12)),
)


@dataclass
class Paused:
    """An operation that is stopped in its midst; `end` is called when it is over."""

    actor: Actor
    end: Callable[[], None]


class Node(RuleBasedStateMachine):
    """The node and its model."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.world = World(self.patch)
        self.named: dict[DatasetId, str] = {}
        self.held: dict[DatasetId, Held] = {}
        self.doubts: list[tuple[object, ...]] = []  # what may happen, or not
        self.paused: Paused | None = None
        self.count = 0

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            self.end()

    def end(self) -> None:
        """Leave nothing of this run."""
        if self.paused is not None:
            self.paused.actor.kill()
        self.world.close()
        self.patch.undo()

    @initialize(source=st.sampled_from(SOURCES), count=st.integers(1, 3))
    def begin(self, source: str, count: int) -> None:
        """Begin with a dataset that holds records, so that no step is spent on that."""
        self.add("a", source, RUN)
        self.publish(0, count, RUN)
        self.push(0, count, RUN)
        self.read(QUIET_TURNS, RUN)

    # Rules

    @rule(wanted=st.lists(operations, min_size=1, max_size=4))
    def do(self, wanted: list[Operation]) -> None:
        """Do one thing after another."""
        for operation in wanted:
            self.perform(operation, RUN)

    @rule(operation=operations, count=writes, is_collected=st.booleans())
    def kill(self, operation: Operation, count: int, is_collected: bool) -> None:
        """Kill the process that does something, and have it repeated, perhaps before what was left is collected."""
        self.perform(operation, Fate("kill", count))
        if is_collected:
            self.world.free().collector.collect()
        if operation[0] == "push":
            self.push_again(RUN)
        else:
            self.perform(operation, RUN)

    @rule(operation=operations, count=writes, others=st.lists(operations, min_size=1, max_size=4))
    def race(self, operation: Operation, count: int, others: list[Operation]) -> None:
        """Stop a process that does something, let others act, and let it go on."""
        self.perform(operation, Fate("pause", count))
        for other in others:
            self.perform(other, RUN)
        self.world.free().collector.collect()
        if self.paused is not None:
            self.resume()

    @rule(operation=operations, count=writes, other=operations, others_count=writes)
    def kill_in_race(self, operation: Operation, count: int, other: Operation, others_count: int) -> None:
        """Stop a process, have another one killed meanwhile, and let the first go on."""
        self.perform(operation, Fate("pause", count))
        self.perform(other, Fate("kill", others_count))
        if self.paused is not None:
            self.resume()
        self.push_again(RUN)

    def perform(self, operation: Operation, fate: Fate) -> None:
        method, *arguments = operation
        if method == "publish":
            fate = RUN  # that is no process of ours
        if self.named or method in ("add", "read"):
            getattr(self, method)(*arguments, fate)

    # Operations

    def add(self, name: str, source: str, fate: Fate) -> None:
        is_free = name.lower() not in {alias.lower() for alias in self.named.values()}
        done = self.act(
            lambda node: node.add(manifest_of(name, source)), fate, ("add", name, source), must=is_free
        )
        if done:
            assert name.lower() in {alias.lower() for alias in self.named.values()}

    def rename(self, pick: int, name: str, fate: Fate) -> None:
        dataset = self.chosen(pick)
        others = {alias.lower() for one, alias in self.named.items() if one != dataset}
        must = name.lower() not in others
        if self.act(
            lambda node: node.changing.rename(str(dataset), name), fate, ("rename", dataset, name), must=must
        ):
            assert self.named[dataset] == name

    def delete(self, pick: int, fate: Fate) -> None:
        dataset = self.chosen(pick)
        if self.act(
            lambda node: node.changing.delete(str(dataset)), fate, ("delete", dataset, None), must=True
        ):
            assert dataset not in self.named

    def reset(self, pick: int, back: int, fate: Fate) -> None:
        dataset = self.chosen(pick)
        heads = list(self.held[dataset].heads)
        target = heads[back % len(heads)]
        is_reachable = self.is_in_chain(dataset, target)
        self.act(
            lambda node: node.changing.reset(str(dataset), target),
            fate,
            ("reset", dataset, target),
            must=is_reachable,
        )

    def publish(self, pick: int, count: int, _: Fate) -> None:
        held = self.held[self.chosen(pick)]
        if not held.is_replaced and held.topic in self.world.kafka.logs:
            ids = self.new_ids(count)
            held.published += ids
            self.world.kafka.logs[held.topic].values += map(message_of, ids)

    def push(self, pick: int, count: int, fate: Fate) -> None:
        dataset = self.chosen(pick)
        held, ids = self.held[dataset], self.new_ids(count)
        key = f"file {ids[0]}"
        held.files[key] = ids
        self.send_file(dataset, key, fate)

    def push_again(self, fate: Fate) -> None:
        """Send again, under its key, each file that was not answered."""
        waiting = [
            (dataset, key)
            for dataset, held in self.held.items()
            if dataset in self.named
            for key in sorted(held.files.keys() - held.sure)
        ]
        for dataset, key in waiting:
            self.send_file(dataset, key, fate)

    def read(self, turns: int, fate: Fate) -> None:
        """Let ingest go on for some turns."""
        ingest = self.world.ingest
        self.world.tell_ingest()
        self.world.time.sleep(RESCAN_SECONDS)
        actor = ingest.reading
        if fate.kind == "pause" and self.paused is None:
            actor.pause_after = fate.writes
        elif fate.kind == "kill":
            actor.kill_after = fate.writes
        for _ in range(turns):
            actor.go()
            if actor.is_over:
                self.require_no_bug(actor)
                self.world.restart_ingest()
                return
            if fate.kind == "pause" and actor.pause_after is None and self.paused is None:
                self.pause_ingest(ingest, actor)
                return
        actor.pause_after = actor.kill_after = None

    def resume(self) -> None:
        """Let what was stopped go on to its end."""
        paused, self.paused = self.paused, None
        assert paused is not None
        paused.actor.pause_after = None
        paused.actor.go()
        paused.end()

    @rule(pick=st.integers(0, 1))
    def collect(self, pick: int) -> None:
        node = self.world.coordinators[pick]
        if node not in self.world.busy:
            node.collector.collect()

    @rule(pick=st.integers(0, 1))
    def restart_coordinator(self, pick: int) -> None:
        node = self.world.coordinators[pick]
        if node not in self.world.busy:
            self.world.replaced(node)

    @precondition(lambda self: self.paused is None)
    @rule()
    def restart_ingest(self) -> None:
        self.world.restart_ingest()

    @precondition(lambda self: self.named)
    @rule(pick=picks)
    def replace_topic(self, pick: int) -> None:
        """The source stops loudly; whatever the new topic holds is never taken for what the old one held."""
        held = self.held[self.chosen(pick)]
        if held.topic in self.world.kafka.logs and not held.is_replaced and self.count % 4 == 0:
            held.is_replaced = True
            self.world.replace_topic(held.topic)

    @rule()
    def settled(self) -> None:
        self.settle()

    # Checks

    @invariant()
    def observe(self) -> None:
        """Whatever has happened was wanted, and what is in the datasets is what may be there."""
        entries = self.world.entries()
        for dataset, entry in entries.items():
            if dataset not in self.named:
                self.expect("add", entry.alias)
                (source,) = entry.push_topics
                self.held[dataset] = Held(source=source, topic=entry.push_topics[source])
            elif self.named[dataset] != entry.alias:
                self.expect("rename", dataset, entry.alias)
            self.named[dataset] = entry.alias
        for dataset in self.named.keys() - entries.keys():
            self.expect("delete", dataset)
            del self.named[dataset]
        for dataset in self.named:
            self.observe_rows(dataset)

    def observe_rows(self, dataset: DatasetId) -> tuple[int, ...]:
        held, rows = self.held[dataset], self.world.rows(dataset)
        head = self.world.refs.head(dataset)
        assert head is not None
        assert len(rows) == len(set(rows)), "a record is there twice"
        files = frozenset(key for key, ids in held.files.items() if ids[0] in rows)
        if head in held.heads and files < held.sure:  # the head is back where it was
            self.expect("reset", dataset, head)
            held.sure &= files
        pushed = [one for key in files for one in held.files[key]]
        assert set(pushed) <= set(rows), "a file is there in part"
        assert held.sure <= files or self.was_reset(dataset, held, files), "a file is lost"
        published = [one for one in rows if one not in set(pushed)]
        assert published == held.published[: len(published)], "messages are lost, or out of order"
        held.heads[head] = files
        return rows

    def settle(self) -> None:
        """Bring all to rest: then everything is there once, and nothing else."""
        if self.paused is not None:
            self.resume()
        self.world.restart_ingest()
        for node in list(self.world.coordinators):
            self.world.replaced(node)
        self.observe()
        self.doubts.clear()
        self.drain()
        collecting = self.world.coordinators[0]
        collecting.now = (
            FAR_FUTURE  # objects that were written to a deleted dataset have outlived their grace
        )
        collecting.collector.collect()
        collecting.now = 0.0
        self.observe()
        assert self.world.leftovers(self.world.entries().values()) == []
        for dataset in self.named:
            held, rows = self.held[dataset], self.observe_rows(dataset)
            if not held.is_replaced:
                assert set(held.published) <= set(rows), "messages are not read"

    def drain(self) -> None:
        """Let ingest read until nothing has come for a while."""
        quiet, turns, before = 0, 0, None
        while quiet < QUIET_TURNS:
            turns += 1
            assert turns < MAX_TURNS, "ingest does not come to rest"
            self.world.time.sleep(RESCAN_SECONDS)
            self.world.ingest.reading.go()
            self.require_no_bug(self.world.ingest.reading)
            now = {dataset: self.world.refs.head(dataset) for dataset in self.named}
            quiet = quiet + 1 if now == before else 0
            before = now

    # The machinery

    def act(
        self, operation: Callable[[Coordinator], object], fate: Fate, doubt: tuple[object, ...], *, must: bool
    ) -> bool:
        """Run an operation on a coordinator; True when it came to its end without an error."""
        node = self.world.free()
        actor = Actor(lambda: operation(node))
        self.world.busy.append(node)

        def end() -> None:
            self.world.busy.remove(node)
            if actor.is_dead:
                self.world.replaced(node)

        is_alone = self.paused is None
        return self.play(actor, fate, doubt, end, must=must and is_alone)

    def send_file(self, dataset: DatasetId, key: str, fate: Fate) -> None:
        held, ingest = self.held[dataset], self.world.ingest
        actor = Actor(lambda: self.world.push(ingest, dataset, held.source, key, held.files[key]))

        def end() -> None:
            if actor.is_over and not actor.is_dead and actor.error is None:
                held.sure.add(key)
            if actor.is_dead or ingest is not self.world.ingest:
                self.leave(ingest)

        self.play(actor, fate, ("push", dataset, key), end, must=False)
        if self.paused is not None and self.paused.actor is actor:
            self.world.ingest = Ingest(self.world)

    def leave(self, ingest: Ingest) -> None:
        """Kill a process of ingest, which has been replaced or died."""
        if ingest is self.world.ingest:
            self.world.restart_ingest()
        elif not ingest.reading.is_over:
            ingest.reading.kill()

    def pause_ingest(self, ingest: Ingest, actor: Actor) -> None:
        """Leave ingest stopped in its midst; another one takes over."""

        def end() -> None:
            if not actor.is_over:
                actor.kill()
            self.require_no_bug(actor)

        self.world.zombies.append(ingest)
        self.paused = Paused(actor, end)
        self.world.ingest = Ingest(self.world)

    def play(
        self, actor: Actor, fate: Fate, doubt: tuple[object, ...], end: Callable[[], None], *, must: bool
    ) -> bool:
        self.doubts.append(doubt)
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
                self.doubts.remove(doubt)

            self.paused = Paused(actor, over)
            self.observe()
            return False
        end()
        self.require_no_bug(actor)
        self.observe()
        self.doubts.remove(doubt)
        if must and actor.error is not None:
            raise actor.error
        return not actor.is_dead and actor.error is None

    def require_no_bug(self, actor: Actor) -> None:
        if actor.error is not None and not isinstance(actor.error, OdfError):
            raise actor.error

    def expect(self, kind: str, *what: object) -> None:
        """Have what happened be among what may."""
        assert any(doubt[0] == kind and doubt[1 : 1 + len(what)] == what for doubt in self.doubts), (
            f"{kind} {what} was not asked for: {self.doubts}"
        )

    def was_reset(self, dataset: DatasetId, held: Held, files: frozenset[str]) -> bool:
        """Return whether files are gone since the head was moved back, and take note of that."""
        if any(doubt[:2] == ("reset", dataset) for doubt in self.doubts):
            held.sure &= files
            return True
        return False

    def is_in_chain(self, dataset: DatasetId, target: Multihash) -> bool:
        node = self.world.free()
        return target in {item[0] for item in self.chain(node, dataset)}

    def chain(self, node: Coordinator, dataset: DatasetId) -> Iterator[tuple[Multihash, object, object]]:
        head = self.world.refs.head(dataset)
        assert head is not None
        yield from iterate(node.datasets.reader(dataset), head)

    def chosen(self, pick: int) -> DatasetId:
        known = list(self.named)
        return known[pick % len(known)]

    def new_ids(self, count: int) -> list[int]:
        self.count += count
        return [*range(self.count - count, self.count)]
