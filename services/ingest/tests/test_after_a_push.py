"""After any push that is accepted, a dataset can still be ingested, derived and verified, and no message is skipped."""

import string
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

import pyarrow as pa
import yaml
from hypothesis import currently_in_test_context, example, given, note, settings
from hypothesis import strategies as st
from odf_testing.builders import a_polling_source, a_push_source, a_step, some_result
from odf_testing.coordinator import DATA
from odf_testing.ingest_node import IngestNode
from odf_testing.profiles import examples
from odf_testing.story import derivative, root
from structlog.testing import capture_logs

from odf_common.chain.build_blocks import add_data_event
from odf_common.chain.rules import admit
from odf_common.chain.state import ChainState
from odf_common.chain.walk import iterate
from odf_common.codec.flatbuffers import block_hash, decode_block, encode_block
from odf_common.data.schema_evolution import schema_of_event, schema_to_event
from odf_common.dataset.open_rejects import KIND
from odf_common.errors import ChainRuleViolated, InvalidInput, OdfError
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import (
    AddData,
    AttachmentEmbedded,
    AttachmentsEmbedded,
    DatasetKind,
    DisablePushSource,
    KnownEvent,
    MetadataBlock,
    SetAttachments,
    SetInfo,
    SetLicense,
    SetVocab,
    SourceState,
    SqlQueryStep,
)
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import Engine
from odf_common.service.request_reply import Replies
from odf_ingest.commit.committer import position_of
from odf_ingest.commit.position import SourcePosition, TopicPosition
from odf_sync.transfer.accept_push import Acceptance, PushedChain
from odf_verifier.targets import targets
from odf_verifier.verification import Verdict, VerificationOptions, Verifier

READ: Final = SourcePosition(topics={"t": TopicPosition(topic_id="a", next={0: 2})})
LAST: Final = Timestamp.parse("9999-12-31T23:59:59.999Z")
FORGED: Final = READ.with_topic("t", TopicPosition(topic_id="a", next={0: 8})).text()
EventOn = Callable[["Node", ChainState], tuple[KnownEvent, ...]]


class Node(IngestNode):
    """A node with a root whose source has read two messages, a derivative of it, and a root without data."""

    def __init__(self, home: Path, pool: ThreadPoolExecutor) -> None:
        super().__init__(home, pool)
        columns = ["event_time TIMESTAMP", "city STRING"]
        read = derivative("copy", {"cities": "cities"}, "SELECT event_time, city FROM cities")
        self.add(*(yaml.safe_dump(one) for one in (root("cities", columns), root("empty", columns), read)))
        self.commit_record("cities", "Oslo")
        known = self.find("cities")
        position = add_data_event(
            known.state, new_data=None, watermark=None, source_state=READ.source_state("default")
        )
        self.propose(known, [position])
        self.work()

    def commit_record(self, ref: str, city: str) -> None:
        self.ingest_row(ref, {"event_time": "2026-01-01T00:00:00Z", "city": city})

    def verdict(self, ref: str) -> str:
        verifier = Verifier(self.node_datasets, cast("Engine", self.engine), self.home)
        (target,) = targets(self.node_datasets, (ref,), every=False, recursive=False)
        *_, verdict = verifier.verify(target, VerificationOptions())
        assert isinstance(verdict, Verdict)
        return "; ".join((verdict.word, *(problem.text for problem in verdict.problems)))

    def receive(self, ref: str, blocks: Mapping[Multihash, bytes], *, is_forced: bool) -> None:
        """Have a node that pushes send blocks, which may be refused; their objects are stored."""
        head = self.find(ref).state.head
        chain = PushedChain(alias=ref, head=head, blocks=blocks, is_forced=is_forced)
        with suppress(OdfError), Acceptance(self.node_datasets, chain) as acceptance:
            acceptance.complete(cast("Replies", self))

    def past_states(self, ref: str) -> list[ChainState]:
        """Return the states of a chain from the last block with data on, the newest last."""
        known = self.find(ref)
        blocks = [name for name, _, _ in iterate(self.datasets.reader(known.id), known.state.head)]
        return [self.states.state_at(known.id, name) for name in blocks[:2]][::-1]


TEXTS: Final = st.text(alphabet=string.printable + "\u202e\u0000é\U0001f600", max_size=12)
TIMES: Final = st.sampled_from(
    # Most are not from the future: such a block refuses all blocks of its push.
    (0, 1, 10**3, 10**6, 10**9, 299 * 10**9) * 2 + (86_400 * 10**9, LAST.ns - 1_800_000_000 * 10**9, LAST.ns)
)
NAMES: Final = st.sampled_from(("offset", "op", "system_time", "event_time", "city", "id", "", "Offset"))
VALUES: Final = st.one_of(
    st.sampled_from(
        (
            READ.text(),
            FORGED,
            READ.with_topic("t", TopicPosition(topic_id="b", next={0: 2})).text(),
            READ.with_rejected(5).text(),
            SourcePosition().text(),
            "999999",
            "null",
            '{"v":2,"topics":{}}',
        )
    ),
    TEXTS,
)
TYPES: Final = st.sampled_from(
    (pa.int32(), pa.string(), pa.decimal128(38, 2), pa.list_(pa.int8()), pa.duration("s"), pa.float16())
)


def kept(state: ChainState) -> AddData:
    """Return an event that only keeps what has to be kept."""
    return add_data_event(state, new_data=None, watermark=None, source_state=None)


def positions() -> st.SearchStrategy[EventOn]:
    kinds, names = (
        st.sampled_from((KIND, "odf/polled", "odf/etag")),
        st.sampled_from(("default", "later", "")),
    )
    states = st.builds(SourceState, source_name=names, kind=kinds, value=VALUES)
    return states.map(lambda one: lambda _, state: (replace(kept(state), new_source_state=one),))


def watermarks() -> st.SearchStrategy[EventOn]:
    times = st.sampled_from((0, -62_135_596_800 * 10**9, 1_800_000_000 * 10**9, LAST.ns, LAST.ns + 999_999))
    return times.map(lambda ns: lambda _, state: (replace(kept(state), new_watermark=Timestamp(ns)),))


def vocabularies() -> st.SearchStrategy[EventOn]:
    names = st.none() | NAMES
    events = st.builds(
        SetVocab,
        offset_column=names,
        operation_type_column=names,
        system_time_column=names,
        event_time_column=names,
    )
    return events.map(lambda event: lambda _, _state: (event,))


def a_column(name: str, type_: pa.DataType, *, is_first: bool) -> EventOn:
    def event(_: Node, state: ChainState) -> tuple[KnownEvent, ...]:
        schema = pa.schema([]) if state.schema is None else schema_of_event(state.schema)
        try:
            return (schema_to_event(schema.insert(0 if is_first else len(schema), pa.field(name, type_))),)
        except (InvalidInput, NotImplementedError):
            return ()

    return event


def schemas() -> st.SearchStrategy[EventOn]:
    return st.builds(a_column, NAMES, TYPES, is_first=st.booleans())


def a_slice(cities: list[str], at: int) -> EventOn:
    def event(node: "Node", state: ChainState) -> tuple[KnownEvent, ...]:
        known = replace(node.find("cities"), state=state)
        table = pa.table({"event_time": [at] * len(cities), "city": cities}, schema=DATA)
        is_root = state.kind is DatasetKind.Root
        try:
            return node.slice_events(known, table, 0, state.system_time) if is_root else ()
        except InvalidInput:  # no record has the columns that a block before names
            return ()

    return event


def records() -> st.SearchStrategy[EventOn]:
    cities = st.lists(TEXTS, min_size=1, max_size=3)
    return st.builds(a_slice, cities, st.sampled_from((0, LAST.ms, LAST.ms + 1, 1 << 62)))


def a_step_of_nothing(_: Node, state: ChainState) -> tuple[KnownEvent, ...]:
    """Return a step that read a block that its input does not have."""
    if state.transform is None:
        return ()
    step = a_step(state, state.inputs[0], "unknown", 99)
    return (replace(some_result(state, step), new_data=None, new_watermark=Timestamp(LAST.ns)),)


def another_query(_: Node, state: ChainState) -> tuple[KnownEvent, ...]:
    if state.transform is None:
        return ()
    steps = (SqlQueryStep(query="SELECT event_time FROM cities"),)
    return (replace(state.transform, transform=replace(state.transform.transform, queries=steps)),)


def disabled_for_a_while(_: Node, state: ChainState) -> tuple[KnownEvent, ...]:
    return (DisablePushSource(source_name="default"), *state.push_sources.values())


def fixed(event: KnownEvent) -> EventOn:
    return lambda _node, _state: (event,)


def position(value: str) -> EventOn:
    state_of = SourceState(source_name="default", kind=KIND, value=value)
    return lambda _, state: (replace(kept(state), new_source_state=state_of),)


DEFINITIONS: Final = st.sampled_from(
    (
        a_step_of_nothing,
        another_query,
        disabled_for_a_while,
        fixed(DisablePushSource(source_name="default")),
        fixed(a_push_source("later")),
        fixed(a_push_source(date_format="%q")),
        fixed(a_polling_source()),
    )
)


def descriptions() -> st.SearchStrategy[EventOn]:
    embedded = st.builds(AttachmentEmbedded, path=TEXTS, content=TEXTS)
    events = st.one_of(
        st.builds(SetInfo, description=st.none() | TEXTS, keywords=st.none() | st.tuples(TEXTS)),
        st.builds(SetLicense, short_name=TEXTS, name=TEXTS, website_url=TEXTS),
        st.builds(SetAttachments, attachments=st.builds(AttachmentsEmbedded, items=st.tuples(embedded))),
    )
    return events.map(lambda event: lambda _, _state: (event,))


EVENTS: Final = st.one_of(
    positions(), watermarks(), vocabularies(), schemas(), records(), DEFINITIONS, descriptions()
)
PUSHES: Final = st.lists(st.tuples(EVENTS | descriptions() | records(), TIMES), min_size=1, max_size=4)


@contextmanager
def running() -> Iterator[Node]:
    with tempfile.TemporaryDirectory() as home, ThreadPoolExecutor(2) as pool, capture_logs():
        yield Node(Path(home), pool)


def a_block(past: ChainState, event: KnownEvent, time: Timestamp) -> tuple[bytes, ChainState] | None:
    """Return a block that a stranger made, and the state after it; None if a rule of chains forbids it."""
    number = past.sequence_number + 1
    block = MetadataBlock(system_time=time, prev_block_hash=past.head, sequence_number=number, event=event)
    try:
        raw = encode_block(block)
        return raw, admit(past, decode_block(raw).block, block_hash=block_hash(raw), version=3)
    except (ChainRuleViolated, InvalidInput):
        return None


def push(node: Node, ref: str, events: list[tuple[EventOn, int]], *, is_forced: bool) -> bool:
    """Have blocks arrive on the head, or instead of it; return whether they are accepted."""
    known = node.find(ref)
    state = node.past_states(ref)[0] if is_forced else known.state
    blocks = {}
    for event_on, later_by in events:
        time = Timestamp(state.system_time.ns + later_by)
        for event in event_on(node, state):
            if currently_in_test_context():
                note(f"{event} at {time}")
            if (made := a_block(state, event, time)) is not None:
                raw, state = made
                blocks[state.head] = raw
    if blocks:
        node.receive(ref, blocks, is_forced=is_forced)
    return node.find(ref).state.head != known.state.head


def test_what_a_push_may_bring_is_accepted() -> None:
    with running() as node:
        described = fixed(SetInfo(description="x"))
        assert push(node, "cities", [(described, 0), (a_slice(["Rome"], 0), 0)], is_forced=False)
        assert push(node, "copy", [(described, 1)], is_forced=False)


@settings(max_examples=examples(40))
@example(ref="cities", blocks=[(position(FORGED), 0)], is_forced=False)
@example(ref="cities", blocks=[(position("999999"), 0)], is_forced=False)
@example(
    ref="cities", blocks=[(fixed(SetInfo(description="x")), LAST.ns - 1_800_000_100 * 10**9)], is_forced=False
)
@example(ref="cities", blocks=[(fixed(SetVocab(event_time_column="city")), 0)], is_forced=False)
@example(ref="cities", blocks=[(fixed(SetVocab(offset_column="nr")), 0)], is_forced=True)
@example(ref="empty", blocks=[(a_column("city", pa.int32(), is_first=True), 0)], is_forced=False)
@example(ref="empty", blocks=[(fixed(SetVocab(event_time_column="city")), 0)], is_forced=False)
@example(ref="cities", blocks=[(fixed(DisablePushSource(source_name="default")), 0)], is_forced=False)
@example(ref="copy", blocks=[(a_step_of_nothing, 0)], is_forced=False)
@example(ref="copy", blocks=[(another_query, 0)], is_forced=False)
@given(ref=st.sampled_from(("cities", "empty", "copy")), blocks=PUSHES, is_forced=st.booleans())
def test_a_dataset_can_be_ingested_derived_and_verified(
    ref: str, blocks: list[tuple[EventOn, int]], is_forced: bool
) -> None:
    with running() as node:
        known = [position_of(state, "default") for state in node.past_states("cities")]
        push(node, ref, blocks, is_forced=is_forced)
        assert position_of(node.find("cities").state, "default") in known, "no message is skipped"

        if is_forced:  # blocks that derivatives have read may be gone
            rollback = node.puller.rollback
            list(rollback.roll_back(rollback.downstream([node.find("cities")])))
        for name in ("cities", "empty"):
            node.commit_record(name, "Rome")
        node.work()

        cities, copy = node.find("cities"), node.find("copy")
        assert copy.state.next_offset == cities.state.next_offset, node.scheduler.stall_of(copy.id)
        assert [node.verdict(name) for name in ("cities", "empty", "copy")] == ["valid"] * 3
        node.editor.commit_event("cities", SetInfo(description="the owner's"))
