"""Every metadata event, by every way in which it may arrive, at a dataset whose key is here and at a copy of another's."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from odf_testing.builders import a_polling_source, a_push_source, a_source_state, a_step, some_result
from odf_testing.coordinator import DATA
from odf_testing.profiles import examples
from odf_testing.story import derivative, root
from odf_testing.sync_node import SyncNode

from odf_common.chain.arrivals import OWNED
from odf_common.chain.state import ChainState
from odf_common.codec.envelopes import Body, Envelope, body_of
from odf_common.codec.flatbuffers import BLOCK_KIND, Manifest, block_hash, encode_block, encode_message
from odf_common.data.columns import TIMESTAMP, with_system_columns
from odf_common.data.schema_evolution import schema_of_event, schema_to_event
from odf_common.data.slices import write_slice
from odf_common.errors import OdfError
from odf_common.identity.dataset_refs import DatasetId, Name
from odf_common.metadata.events import (
    AddData,
    AddPushSource,
    AttachmentEmbedded,
    AttachmentsEmbedded,
    DatasetKind,
    DataSlice,
    DisablePollingSource,
    DisablePushSource,
    ExecuteTransform,
    KnownEvent,
    MetadataBlock,
    MetadataEvent,
    OffsetInterval,
    Seed,
    SetAttachments,
    SetDataSchema,
    SetInfo,
    SetLicense,
    SetPollingSource,
    SetTransform,
    SetVocab,
    SqlQueryStep,
    UnknownEvent,
)
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.store import ObjectKind, require_entry
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_sync.access.rules import Role, Visibility

from .node_with_account import Node

ROOT, DERIVED, POLLED = "ann/cities", "ann/copy", "ann/polled"
BOB: Final = Name("bob")
DEFINITION, PROGRESS, TIME, RULE = "ForeignDefinition", "ForeignProgress", "TimeInFuture", "ChainRuleViolated"
ACCEPTED: Final = ""
RECORDS: Final = {"push": "TransferRefused", "pull": "RecordsRefused"}
READ: Final = '{"topics":{"odf.push.ann.cities.default":{"id":"a","next":{"0":2}}},"v":1}'
FORGED: Final = READ.replace('{"0":2}', '{"0":8}')
FAR: Final = Timestamp.parse("9999-12-31T23:59:59Z")

EventOn = Callable[[ChainState], MetadataEvent]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """An event, where it arrives, and what becomes of it."""

    event: EventOn
    owned: str
    copy: str = ACCEPTED
    dataset: str = ROOT


def carried(state: ChainState) -> AddData:
    """Return an event that only keeps what has to be kept."""
    return AddData(
        prev_offset=state.last_offset,
        new_watermark=state.watermark,
        new_source_state=state.last_source_state,
    )


def state_of(source: str, value: str) -> EventOn:
    return lambda state: replace(carried(state), new_source_state=a_source_state(value, source))


def watermark(event_time: Timestamp) -> EventOn:
    return lambda state: replace(carried(state), new_watermark=event_time)


def with_a_column(state: ChainState) -> SetDataSchema:
    assert state.schema is not None
    schema = schema_of_event(state.schema)
    return schema_to_event(schema.append(schema.field("city").with_name("country").with_nullable(True)))


def with_another_query(state: ChainState) -> SetTransform:
    assert state.transform is not None
    steps = (SqlQueryStep(query="SELECT event_time, city FROM cities WHERE true"),)
    return replace(state.transform, transform=replace(state.transform.transform, queries=steps))


def of_no_kind(state: ChainState) -> UnknownEvent:
    return UnknownEvent(discriminator=99, reason="of a later version")


# What the documents promise. Each kind of event has a sample here, or the test below fails.
SAMPLES: Final = {
    AddData: [
        Sample(event=watermark(Timestamp.parse("2026-01-02T00:00:00Z")), owned=ACCEPTED),
        Sample(event=watermark(FAR), owned=PROGRESS),
        Sample(event=state_of("default", FORGED), owned=PROGRESS),
        Sample(event=state_of("default", "999999"), owned=PROGRESS),
        Sample(event=state_of("later", FORGED), owned=PROGRESS),
    ],
    ExecuteTransform: [
        Sample(
            event=lambda state: replace(
                some_result(state, a_step(state, state.inputs[0], "unknown", 99)), new_data=None
            ),
            owned=PROGRESS,
            dataset=DERIVED,
        ),
    ],
    Seed: [
        Sample(
            event=lambda state: Seed(dataset_id=state.dataset_id, dataset_kind=DatasetKind.Root),
            owned=RULE,
            copy=RULE,
        )
    ],
    SetPollingSource: [
        Sample(event=lambda _: a_polling_source("file:///etc/shadow"), owned=DEFINITION, dataset=POLLED)
    ],
    SetTransform: [Sample(event=with_another_query, owned=DEFINITION, dataset=DERIVED)],
    SetVocab: [
        Sample(event=lambda _: SetVocab(offset_column="nr"), owned=DEFINITION),
        Sample(event=lambda _: SetVocab(event_time_column="city"), owned=DEFINITION),
        Sample(event=lambda _: SetVocab(event_time_column="at"), owned=DEFINITION, dataset=POLLED),
    ],
    SetAttachments: [
        Sample(
            event=lambda _: SetAttachments(
                attachments=AttachmentsEmbedded(items=(AttachmentEmbedded(path="README.md", content="x"),))
            ),
            owned=ACCEPTED,
        )
    ],
    SetInfo: [Sample(event=lambda _: SetInfo(description="x", keywords=("a", "b")), owned=ACCEPTED)],
    SetLicense: [
        Sample(
            event=lambda _: SetLicense(short_name="x", name="y", website_url="https://example.org"),
            owned=ACCEPTED,
        )
    ],
    SetDataSchema: [Sample(event=with_a_column, owned=DEFINITION)],
    AddPushSource: [Sample(event=lambda _: a_push_source("second"), owned=DEFINITION)],
    DisablePushSource: [Sample(event=lambda _: DisablePushSource(source_name="default"), owned=DEFINITION)],
    DisablePollingSource: [
        Sample(event=lambda _: DisablePollingSource(), owned=DEFINITION, dataset=POLLED),
    ],
    UnknownEvent: [Sample(event=of_no_kind, owned=DEFINITION)],
}


def test_each_kind_of_event_has_its_row_and_a_sample() -> None:
    assert {*KnownEvent.__args__, UnknownEvent} == OWNED.keys() == SAMPLES.keys()


class Owner(Node):
    """A multi-tenant node whose `ann` has a root, a derivative and a polled dataset; `bob` is an editor of each."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, is_multi_tenant=True)
        self.code = ACCEPTED
        columns = ["event_time TIMESTAMP", "city STRING"]
        polled = root(POLLED, columns)
        polled["content"]["metadata"] = [
            {
                "kind": "SetPollingSource",
                "fetch": {"kind": "Url", "url": "https://example.org/x.json"},
                "read": {"kind": "NdJson"},
                "merge": {"kind": "Append"},
            }
        ]
        read = derivative(DERIVED, {"cities": ROOT}, "SELECT event_time, city FROM cities")
        self.coordinator.add(*(yaml.safe_dump(one) for one in (root(ROOT, columns), read, polled)))
        known = self.coordinator.push(ROOT, "Kyiv", "Quito")
        self.coordinator.propose(
            known, [replace(carried(known.state), new_source_state=a_source_state(READ))]
        )
        self.coordinator.work()
        self.directory.add_account(BOB, None)
        bob = self.directory.store.account(BOB)
        for alias in (ROOT, DERIVED, POLLED):
            entry = require_entry(self.catalog, alias)
            self.directory.set_visibility(entry.incarnation, Visibility.PUBLIC)
            self.directory.store.set_role(entry.incarnation, bob, Role.EDITOR)

    def request(self, topic: str, dataset: DatasetId, body: Body, *, timeout: float) -> Envelope | None:
        answer = super().request(topic, dataset, body, timeout=timeout)
        reply = None if answer is None else body_of(answer)
        self.code = reply.code if isinstance(reply, bus.Refused) else ACCEPTED
        return answer

    def state(self, alias: str) -> ChainState:
        return self.coordinator.find(alias).state

    def token_of(self, account: Name) -> str:
        return self.directory.create_token(account, label="")[0].text()

    def send(self, way: str, alias: str, stranger: SyncNode, urls: tuple[str, str]) -> str:
        """Have a chain of a stranger arrive; return the code of the refusal."""
        self.code, (here, there) = ACCEPTED, urls
        try:
            if way == "pull":
                self.pull(f"{there}/{alias}", alias)
            else:
                token = self.token_of(BOB if way == "push by an editor" else Name("ann"))
                stranger.push(alias, f"odf+{here}/{alias}", token=token)
        except OdfError as error:
            return self.code or error.code
        return self.code


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Owner, SyncNode, tuple[str, str]]]:
    """Return the owner's node, that of someone with copies of its datasets, and the URLs of both."""
    homes = tmp_path_factory.mktemp("homes")
    owner, stranger = Owner(homes / "owner"), SyncNode(homes / "stranger")
    with owner.served(owner.authorizer) as here, stranger.served() as there:
        for alias in (ROOT, DERIVED, POLLED):
            stranger.pull(f"{here}/{alias}", alias)
        yield owner, stranger, (here, there)


def put_block(node: SyncNode, past: ChainState, event: MetadataEvent, time: Timestamp) -> None:
    """Move a head to a block with an event, which no rule has admitted."""
    block = MetadataBlock(
        system_time=time,
        prev_block_hash=past.head,
        sequence_number=past.sequence_number + 1,
        event=AddData() if isinstance(event, UnknownEvent) else event,
    )
    raw = encode_block(block)
    if isinstance(event, UnknownEvent):
        raw = with_discriminator(block, event.discriminator)
    node.blobs.put(past.dataset_id, ObjectKind.BLOCK, block_hash(raw), raw)
    node.refs.compare_and_set(past.dataset_id, expected=past.head, new=block_hash(raw))


def with_discriminator(block: MetadataBlock, number: int) -> bytes:
    """Return a block whose event has a kind that no version knows."""
    one, other = (
        encode_message(replace(block, event=event)) for event in (AddData(), DisablePollingSource())
    )
    (at,) = (n for n, (left, right) in enumerate(zip(one, other, strict=True)) if left != right)
    return encode_message(
        Manifest(kind=BLOCK_KIND, version=3, content=one[:at] + bytes([number]) + one[at + 1 :])
    )


def back_to(node: SyncNode, state: ChainState) -> None:
    head = node.refs.head(state.dataset_id)
    node.refs.compare_and_set(state.dataset_id, expected=head, new=state.head)


@pytest.mark.parametrize("is_owned", [True, False], ids=["owned", "copy"])
@pytest.mark.parametrize("way", ["push by an editor", "push by the owner", "pull"])
def test_what_may_arrive(
    nodes: tuple[Owner, SyncNode, tuple[str, str]], monkeypatch: pytest.MonkeyPatch, way: str, is_owned: bool
) -> None:
    owner, stranger, urls = nodes
    if not is_owned:
        monkeypatch.setattr(type(owner.coordinator.keys), "has", lambda *_: False)
    found, expected = [], []
    for kind, samples in SAMPLES.items():
        for number, sample in enumerate(samples):
            past = owner.state(sample.dataset)
            verdict = sample.owned if is_owned else sample.copy
            future = Timestamp(owner.coordinator.clock.now().ns + 86_400 * 10**9)
            for time, outcome in ((past.system_time, verdict), (future, RULE if verdict == RULE else TIME)):
                put_block(stranger, past, sample.event(past), time)
                code = owner.send(way, sample.dataset, stranger, urls)
                has_moved = owner.state(sample.dataset) != past
                found.append((kind.__name__, number, code, has_moved))
                expected.append((kind.__name__, number, outcome, outcome == ACCEPTED))
                back_to(stranger, past)
                back_to(owner, past)
    assert found == expected


LAST_MS, FIRST_MS = FAR.ms + 999, -62_135_596_800_000
MILLISECONDS: Final = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(FIRST_MS, LAST_MS)


def slice_event(node: SyncNode, past: ChainState, event_time: int, system_time: int) -> AddData:
    """Store a slice whose second record has these times, in milliseconds; return the event that declares it."""
    times = [past.system_time.ms, event_time], [past.system_time.ms, system_time]
    table = with_system_columns(
        pa.table({"event_time": times[0], "city": ["Oslo", "Rome"]}, schema=DATA),
        ops=None,
        first_offset=past.next_offset,
        system_time=past.system_time,
        vocab=past.vocabulary,
        signed=False,
    )
    index = table.schema.get_field_index("system_time")
    table = table.set_column(index, table.schema.field(index), pa.array(times[1], TIMESTAMP))
    file = node.blobs.scratch() / "slice"
    written = write_slice(table, file)
    node.blobs.put_file(past.dataset_id, ObjectKind.DATA, written.physical_hash, file)
    data = DataSlice(
        logical_hash=written.logical_hash,
        physical_hash=written.physical_hash,
        offset_interval=OffsetInterval(start=past.next_offset, end=past.next_offset + 1),
        size=written.size,
    )
    return replace(carried(past), new_data=data)


@settings(max_examples=examples(15))
@example(way="push by an editor", event_time=1 << 62, later_by=0)
@example(way="push by the owner", event_time=0, later_by=1)
@example(way="pull", event_time=LAST_MS, later_by=0)
@example(way="pull", event_time=LAST_MS + 1, later_by=0)
@example(way="pull", event_time=FIRST_MS - 1, later_by=0)
@given(
    way=st.sampled_from(("push by an editor", "push by the owner", "pull")),
    event_time=MILLISECONDS,
    later_by=st.integers(-(10**12), 10**12),
)
def test_times_of_records_are_those_that_all_readers_support_and_not_later_than_their_block(
    nodes: tuple[Owner, SyncNode, tuple[str, str]], way: str, event_time: int, later_by: int
) -> None:
    owner, stranger, urls = nodes
    past = owner.state(ROOT)
    event = slice_event(stranger, past, event_time, past.system_time.ms + later_by)
    put_block(stranger, past, event, past.system_time)
    code = owner.send(way, ROOT, stranger, urls)
    has_moved = owner.state(ROOT) != past
    back_to(stranger, past)
    back_to(owner, past)
    is_good = FIRST_MS <= event_time <= LAST_MS and later_by <= 0
    assert (code, has_moved) == ((ACCEPTED, True) if is_good else (RECORDS[way[:4]], False))
