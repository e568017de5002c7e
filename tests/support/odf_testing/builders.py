"""Values for tests: each is valid by default, and a test states only what it is about."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from odf_common.chain.build_blocks import EncodedBlock, build_blocks
from odf_common.chain.state import DEFAULT_SOURCE, ChainState
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.data_schema import (
    DataField,
    DataSchema,
    DataType,
    DataTypeInt32,
    DataTypeInt64,
    DataTypeOption,
    DataTypeString,
    DataTypeTimestamp,
)
from odf_common.metadata.events import (
    AddData,
    AddPushSource,
    Checkpoint,
    DatasetKind,
    DataSlice,
    ExecuteTransform,
    ExecuteTransformInput,
    KnownEvent,
    MergeStrategyAppend,
    MetadataBlock,
    MetadataEvent,
    OffsetInterval,
    ReadStepNdJson,
    Seed,
    SetDataSchema,
    SetPollingSource,
    SetTransform,
    SourceState,
    SqlQueryStep,
    TransformInput,
    TransformSql,
)
from odf_common.metadata.fetching import FetchStepUrl
from odf_common.metadata.scalars import Timestamp

BLOCK_VERSION: Final = 3
_SYSTEM_COLUMNS: Final[dict[str, DataType]] = {
    "offset": DataTypeInt64(),
    "op": DataTypeInt32(),
    "system_time": DataTypeTimestamp(),
    "event_time": DataTypeTimestamp(),
}


def a_hash(name: object) -> Multihash:
    """Return a physical hash, equal for equal names."""
    return Multihash.sha3(hashlib.sha3_256(str(name).encode()).digest())


def a_dataset(name: object = "dataset") -> DatasetId:
    """Return a dataset id, equal for equal names."""
    return DatasetId.of_key(hashlib.sha3_256(str(name).encode()).digest())


def a_time(seconds: int = 0) -> Timestamp:
    """Return a time that many seconds after the start of 2026."""
    return Timestamp.from_ms(1_767_225_600_000 + seconds * 1000)


def a_seed(kind: DatasetKind = DatasetKind.Root, dataset: DatasetId | None = None) -> Seed:
    """Return the first event of a chain."""
    return Seed(dataset_id=dataset or a_dataset(), dataset_kind=kind)


def a_schema(**columns: DataType) -> SetDataSchema:
    """Return a schema with the system columns, and `columns` or by default an optional `city`."""
    data = columns or {"city": DataTypeOption(inner=DataTypeString())}
    fields = tuple(DataField(name=name, type=kind) for name, kind in {**_SYSTEM_COLUMNS, **data}.items())
    return SetDataSchema(schema=DataSchema(fields=fields))


def a_push_source(name: str = DEFAULT_SOURCE, *, date_format: str | None = None) -> AddPushSource:
    """Return a source of NdJson records that are appended."""
    return AddPushSource(
        source_name=name, read=ReadStepNdJson(date_format=date_format), merge=MergeStrategyAppend()
    )


def a_polling_source(url: str = "https://example.com/data.json") -> SetPollingSource:
    """Return a source of NdJson records under a URL."""
    return SetPollingSource(fetch=FetchStepUrl(url=url), read=ReadStepNdJson(), merge=MergeStrategyAppend())


def a_query(*queries: SqlQueryStep) -> TransformSql:
    """Return normalized SQL: the given steps, by default one that selects everything."""
    return TransformSql(engine="spark", queries=queries or (SqlQueryStep(query="SELECT * FROM input_0"),))


def a_transform(*inputs: DatasetId) -> SetTransform:
    """Return a transform of these inputs, named `input_0` and so on; by default of one."""
    known = inputs or (a_dataset("input"),)
    return SetTransform(
        inputs=tuple(
            TransformInput(dataset_ref=str(one), alias=f"input_{at}") for at, one in enumerate(known)
        ),
        transform=a_query(),
    )


def a_slice(start: int = 0, end: int | None = None) -> DataSlice:
    """Return a slice with the records from `start` to `end`, by default ten."""
    last = start + 9 if end is None else end
    return DataSlice(
        logical_hash=Multihash.arrow0(a_hash(("logical", start, last)).digest),
        physical_hash=a_hash(("slice", start, last)),
        offset_interval=OffsetInterval(start=start, end=last),
        size=1000,
    )


def a_checkpoint(name: object = "checkpoint") -> Checkpoint:
    """Return a checkpoint, equal for equal names."""
    return Checkpoint(physical_hash=a_hash(("checkpoint", name)), size=100)


def a_source_state(value: str, source: str = DEFAULT_SOURCE) -> SourceState:
    """Return the position of a source; `value` may be anything."""
    return SourceState(source_name=source, kind="odf/kafka", value=value)


def some_data(past: ChainState, records: int = 10) -> AddData:
    """Return an event with that many new records on top of `past`; everything else is carried over."""
    start = past.next_offset
    return AddData(
        prev_checkpoint=None if past.checkpoint is None else past.checkpoint.physical_hash,
        prev_offset=past.last_offset,
        new_data=a_slice(start, start + records - 1),
        new_watermark=past.watermark,
    )


def a_step(past: ChainState, dataset: DatasetId, block: object, offset: int | None) -> ExecuteTransformInput:
    """Return what a transform on top of `past` reads of an input that is now at `block` and `offset`."""
    done = past.progress_of(dataset)
    return ExecuteTransformInput(
        dataset_id=dataset,
        prev_block_hash=done.last_block,
        new_block_hash=a_hash(block),
        prev_offset=done.last_offset,
        new_offset=offset,
    )


def some_result(past: ChainState, *steps: ExecuteTransformInput, records: int = 10) -> ExecuteTransform:
    """Return an event with that many derived records on top of `past`; everything else is carried over."""
    data = some_data(past, records)
    return ExecuteTransform(
        query_inputs=steps,
        prev_checkpoint=data.prev_checkpoint,
        prev_offset=data.prev_offset,
        new_data=data.new_data,
        new_watermark=data.new_watermark,
    )


def a_block(past: ChainState | None, event: MetadataEvent, **changes: object) -> MetadataBlock:
    """Return the block with `event` on top of `past`, one second later, with the given fields changed."""
    block = MetadataBlock(
        system_time=a_time() if past is None else Timestamp(past.system_time.ns + 1_000_000_000),
        prev_block_hash=None if past is None else past.head,
        sequence_number=0 if past is None else past.sequence_number + 1,
        event=event,
    )
    return replace(block, **changes)  # type: ignore[arg-type]


@dataclass(slots=True, kw_only=True)
class AChain:
    """A chain under construction, with its own store of blocks."""

    blocks: list[EncodedBlock] = field(default_factory=list)
    store: dict[Multihash, bytes] = field(default_factory=dict)
    last: ChainState | None = None

    @property
    def state(self) -> ChainState:
        """Return the state of a chain that has at least one block."""
        assert self.last is not None
        return self.last

    def add(self, *events: KnownEvent, version: int = BLOCK_VERSION) -> "AChain":
        """Add a block per event, a second apart; raises `ChainRuleViolated`."""
        for event in events:
            system_time = a_block(self.last, event).system_time
            blocks, self.last = build_blocks(self.last, [event], system_time=system_time, version=version)
            self.blocks.extend(blocks)
            self.store.update({one.hash: one.raw for one in blocks})
        return self

    def add_data(self, times: int = 1, records: int = 10) -> "AChain":
        """Add that many blocks with data."""
        for _ in range(times):
            self.add(some_data(self.state, records))
        return self

    def read(self, name: Multihash) -> bytes:
        """Return a block's bytes; raises `KeyError`."""
        return self.store[name]


def a_chain(*events: KnownEvent) -> AChain:
    """Return a chain of these events; by default of a root dataset with a push source and a schema."""
    return AChain().add(*(events or (a_seed(), a_push_source(), a_schema())))


def a_derivative(*inputs: DatasetId, events: Iterable[KnownEvent] = ()) -> AChain:
    """Return the chain of a derivative dataset with a transform of `inputs`, a schema, and then `events`."""
    seed = a_seed(DatasetKind.Derivative, a_dataset("derivative"))
    return AChain().add(seed, a_transform(*inputs), a_schema(), *events)
