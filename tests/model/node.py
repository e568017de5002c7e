"""The node and its model as a state machine: its operations, and the invariants after each step."""

from collections.abc import Iterator
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from odf_testing.coordinator import Coordinator
from tests.model.expected import File, Move
from tests.model.observed_node import RUN, Fate, ObservedNode
from tests.model.records import SHAPES, file_of, manifest_of, messages_of
from tests.model.world import RESCAN_SECONDS

from odf_common.chain.walk import iterate
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_ingest.push.source_topics import Key
from odf_ingest.source_settings import BadRecords

NAMES: Final = ("a", "a.b", "x", "Y")
QUIET_TURNS: Final = 12
MAX_TURNS: Final = 200
FAR_FUTURE: Final = 1e12  # seconds since the epoch

writes = st.one_of(st.integers(0, 6), st.integers(0, 14), st.integers(0, 45))
picks = st.integers(0, 7)
counts = st.integers(1, 3)
names = st.sampled_from(NAMES)
shapes = st.sampled_from(sorted(SHAPES))
Operation = tuple[Any, ...]  # the name of a method, and its arguments but for the fate
operations = st.one_of(
    st.tuples(st.just("add"), names, shapes),
    st.tuples(st.just("extend"), picks, st.sampled_from(("b.c", "c", "ledger"))),
    st.tuples(st.just("rename"), picks, names),
    st.tuples(st.just("delete"), picks),
    st.tuples(st.just("reset"), picks, picks),
    st.tuples(st.just("push"), picks, counts),
    st.tuples(st.just("repeat"), picks, picks),
    st.tuples(st.just("publish"), picks, counts),
    st.tuples(st.just("read"), st.integers(1, 12)),
    st.tuples(st.just("resume"), picks, st.sampled_from(("earliest", "latest", "keep", ""))),
    st.tuples(st.just("skip"), picks),
    st.tuples(st.just("set"), picks, st.sampled_from(tuple(BadRecords))),
)


class Node(ObservedNode):
    """The node and its model."""

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            self.end()

    @initialize(shape=shapes, count=st.integers(1, 3))
    def begin(self, shape: str, count: int) -> None:
        """Begin with a dataset that holds records, so that no step is spent on that."""
        self.add("a", shape, RUN)
        self.publish(0, count, RUN)
        self.push(0, count, RUN)
        self.read(QUIET_TURNS, RUN)

    # Rules

    @rule(wanted=st.lists(operations, min_size=1, max_size=4))
    def do(self, wanted: list[Operation]) -> None:
        """Execute one operation after another."""
        for operation in wanted:
            self.perform(operation, RUN)

    @rule(operation=operations, count=writes, is_collected=st.booleans())
    def kill(self, operation: Operation, count: int, is_collected: bool) -> None:
        """Kill the process during an operation, and repeat that, possibly before leftovers are collected."""
        self.perform(operation, Fate("kill", count))
        if is_collected:
            self.world.free().collector.collect()
        if operation[0] == "push":
            self.push_again(RUN)
        else:
            self.perform(operation, RUN)

    @rule(operation=operations, count=writes, others=st.lists(operations, min_size=1, max_size=4))
    def race(self, operation: Operation, count: int, others: list[Operation]) -> None:
        """Stop a process during an operation, let others act, and let it continue."""
        self.perform(operation, Fate("pause", count))
        for other in others:
            self.perform(other, RUN)
        self.world.free().collector.collect()
        if self.paused is not None:
            self.finish_paused()

    @rule(operation=operations, count=writes, other=operations, others_count=writes)
    def kill_in_race(self, operation: Operation, count: int, other: Operation, others_count: int) -> None:
        """Stop a process, have another one killed meanwhile, and let the first continue."""
        self.perform(operation, Fate("pause", count))
        self.perform(other, Fate("kill", others_count))
        if self.paused is not None:
            self.finish_paused()
        self.push_again(RUN)

    def perform(self, operation: Operation, fate: Fate) -> None:
        method, *arguments = operation
        if method == "publish":
            fate = RUN  # that is a foreign process
        if self.named or method in ("add", "read"):
            getattr(self, method)(*arguments, fate)

    # Operations

    def add(self, name: str, shape: str, fate: Fate) -> None:
        is_free = name.lower() not in {alias.lower() for alias in self.named.values()}
        text = manifest_of(name, SHAPES[shape])
        if self.act(lambda node: node.add(text), fate, (("add", name),), must=is_free):
            assert name.lower() in {alias.lower() for alias in self.named.values()}

    def extend(self, pick: int, source: str, fate: Fate) -> None:
        """Declare one more source; where the dataset was renamed or deleted meanwhile that makes another one."""
        dataset = self.chosen(pick)
        alias, topics = self.named[dataset], self.expected[dataset].topics
        text = manifest_of(alias, dict.fromkeys((*topics, source)))
        doubts = (("extend", dataset, source), ("add", alias))
        if self.act(lambda node: node.add(text, replace=True), fate, doubts, must=True):
            assert source in self.expected[dataset].topics

    def rename(self, pick: int, name: str, fate: Fate) -> None:
        dataset = self.chosen(pick)
        others = {alias.lower() for one, alias in self.named.items() if one != dataset}
        must = name.lower() not in others
        doubts = (("rename", dataset, name),)
        if self.act(lambda node: node.names.rename(str(dataset), name), fate, doubts, must=must):
            assert self.named[dataset] == name

    def delete(self, pick: int, fate: Fate) -> None:
        dataset = self.chosen(pick)
        doubts = (("delete", dataset),)
        if self.act(lambda node: node.names.delete(str(dataset)), fate, doubts, must=True):
            assert dataset not in self.named

    def reset(self, pick: int, back: int, fate: Fate) -> None:
        dataset = self.chosen(pick)
        self.expected[dataset].resets += 1
        heads = self.expected[dataset].heads
        target = heads[back % len(heads)]
        self.act(
            lambda node: node.editor.reset(str(dataset), target),
            fate,
            (("reset", dataset, target),),
            must=self.is_in_chain(dataset, target),
        )

    def publish(self, pick: int, count: int, _: Fate) -> None:
        source, topic = self.chosen_source(self.chosen(pick))
        if topic in self.world.kafka.logs:
            self.world.kafka.logs[topic].values += messages_of(source, self.new_numbers(count))

    def push(self, pick: int, count: int, fate: Fate) -> None:
        dataset = self.chosen(pick)
        source, _ = self.chosen_source(dataset)
        numbers = self.new_numbers(count)
        key = f"file {numbers[0]}"
        self.expected[dataset].files[key] = File(source, file_of(source, numbers))
        self.send_file(dataset, key, fate)

    def repeat(self, pick: int, which: int, fate: Fate) -> None:
        """Send a file again under its key, possibly long after its response."""
        dataset = self.chosen(pick)
        keys = list(self.expected[dataset].files)
        if keys:
            self.send_file(dataset, keys[which % len(keys)], fate)

    def push_again(self, fate: Fate) -> None:
        """Send again, under its key, each file without a response."""
        waiting = [
            (dataset, key)
            for dataset, expected in self.expected.items()
            for key in sorted(expected.files.keys() - expected.answered)
        ]
        for dataset, key in waiting:
            if dataset in self.named:
                self.send_file(dataset, key, fate)

    def resume(self, pick: int, start: str, fate: Fate) -> None:
        """Accept a topic as it is, where a source of the dataset is stopped."""
        dataset = self.chosen(pick)
        source, topic = self.stuck_source(dataset)
        self.resume_source(dataset, source, topic, start, fate)

    def resume_source(self, dataset: DatasetId, source: str, topic: str, start: str, fate: Fate) -> bool:
        log = self.world.kafka.logs.get(topic)
        if start:
            end, topic_id = (0, None) if log is None else (len(log.values), log.topic_id)
            self.expected[dataset].moves.append(Move(source, topic_id, start, end))
        return self.command(
            lambda ingest, entry: ingest.control.resume(entry, source, start),
            dataset,
            ("resume", dataset),
            fate,
        )

    def skip(self, pick: int, fate: Fate) -> None:
        """Skip the message at which a source of the dataset is stopped."""
        dataset = self.chosen(pick)
        source, _ = self.stuck_source(dataset)
        self.skip_in(dataset, source, fate)

    def skip_in(self, dataset: DatasetId, source: str, fate: Fate) -> bool:
        return self.command(
            lambda ingest, entry: ingest.control.skip(entry, source), dataset, ("skip", dataset), fate
        )

    def set(self, pick: int, bad_records: BadRecords, fate: Fate) -> None:
        """Choose the handling of messages that are not records."""
        dataset = self.chosen(pick)
        source, _ = self.chosen_source(dataset)
        changes = {"badRecords": bad_records.value}
        self.command(
            lambda ingest, entry: ingest.control.change(entry, source, changes),
            dataset,
            ("set", dataset),
            fate,
        )

    def read(self, turns: int, fate: Fate) -> None:
        """Let ingest run for some turns."""
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

    @precondition(lambda self: self.named and self.count % 4 == 0)
    @rule(pick=picks, is_lost=st.booleans())
    def replace_topic(self, pick: int, is_lost: bool) -> None:
        """The source stops with an error; the content of the new topic is never mistaken for that of the old one."""
        _, topic = self.chosen_source(self.chosen(pick))
        if topic in self.world.kafka.logs:
            self.world.kafka.replace(topic, is_lost=is_lost)

    @precondition(lambda self: self.named)
    @rule(pick=picks, seconds=st.sampled_from((1.0, 1e9)))
    def leave_lock(self, pick: int, seconds: float) -> None:
        """A process that has ended, or a foreign one, holds a dataset's lock."""
        self.world.locks.leave(self.chosen(pick), self.world.time.now + seconds)

    @rule()
    def settled(self) -> None:
        self.settle()

    # Checks

    def settle(self) -> None:
        """Settle all operations: then everything is committed once, and nothing else."""
        if self.paused is not None:
            self.finish_paused()
        self.world.restart_ingest()
        for node in list(self.world.coordinators):
            self.world.replaced(node)
        self.observe()
        self.doubts.clear()
        self.drain()
        collecting = self.world.coordinators[0]
        # Objects that were written to a deleted dataset have outlived their grace.
        collecting.now = FAR_FUTURE
        collecting.collector.collect()
        collecting.now = 0.0
        self.observe()
        assert self.world.leftovers(self.world.entries().values()) == []
        for dataset in self.named:
            self.remedy(dataset)

    def remedy(self, dataset: DatasetId) -> None:
        """Resume each source that needs a user for that, until all published messages are read."""
        topics = self.expected[dataset].topics
        for source in sorted(self.world.sources(dataset)):
            for _ in range(MAX_TURNS):
                position = self.observe_content(dataset).position(source)
                match self.world.require_read(dataset, source, topics[source], position):
                    case "":
                        break
                    case "resume":
                        done = self.resume_source(dataset, source, topics[source], "earliest", RUN)
                    case _:
                        done = self.skip_in(dataset, source, RUN)
                assert done, f"{source} does not continue"
                self.drain()

    def drain(self) -> None:
        """Let ingest read until no message has arrived for a while."""
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

    def chosen_source(self, dataset: DatasetId) -> tuple[str, str]:
        """Return a source of a dataset and its topic, occasionally a different one."""
        topics = sorted(self.expected[dataset].topics.items())
        return topics[self.count % len(topics)]

    def stuck_source(self, dataset: DatasetId) -> tuple[str, str]:
        """Return a source that is stopped, and its topic, or any."""
        owned = self.world.ingest.owned
        topics = sorted(self.expected[dataset].topics.items())
        stuck = [item for item in topics if owned.reason(Key(dataset, item[0])) is not None]
        return (stuck or topics)[0]

    def new_numbers(self, count: int) -> list[int]:
        self.count += count
        return [*range(self.count - count, self.count)]
