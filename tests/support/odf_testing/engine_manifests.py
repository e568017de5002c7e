"""Datasets of the examples' manifests, run by the engine without a node, for tests and measurements."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from odf_common.codec.manifests import snapshots_from_text
from odf_common.data.columns import TIMESTAMP, offset_type, operation_type
from odf_common.data.ddl import ddl_to_schema
from odf_common.metadata.events import (
    AddPushSource,
    DatasetSnapshot,
    SetTransform,
    SetVocab,
    TransformSql,
    vocabulary_of,
)
from odf_testing.engine import Block, Chain, Derivative, Executes

_SYSTEM: Final = (
    pa.field("offset", offset_type(signed=False), nullable=False),
    pa.field("op", operation_type(signed=False), nullable=False),
    pa.field("system_time", TIMESTAMP, nullable=False),
)


def snapshots(folder: Path) -> Mapping[str, DatasetSnapshot]:
    """Return the datasets of a folder's manifests by name."""
    texts = [(file.read_bytes(), file.name) for file in sorted(folder.glob("*.yaml"))]
    return {each.name: each for text, name in texts for each in snapshots_from_text(text, name)}


def transform_of(snapshot: DatasetSnapshot) -> SetTransform:
    """Return a function that creates a derivative."""
    return next(event for event in snapshot.metadata if isinstance(event, SetTransform))


def root_schema(snapshot: DatasetSnapshot) -> pa.Schema:
    """Return a root's columns: the system's, the event time, then those of its source unchanged."""
    (source,) = (event for event in snapshot.metadata if isinstance(event, AddPushSource))
    columns = ddl_to_schema(getattr(source.read, "ddl_schema", None) or ())
    vocab = next((event for event in snapshot.metadata if isinstance(event, SetVocab)), None)
    time = columns.field(vocabulary_of(vocab).event_time_column)
    others = [field for field in columns if field.name != time.name]
    return pa.schema([*_SYSTEM, time.with_nullable(nullable=False), *others])


def chain_of(snapshot: DatasetSnapshot, name: str, blocks: Sequence[Block], folder: Path) -> Chain:
    """Return a root's chain of these blocks by its name in SQL; rows are (op, event time in ms, *data)."""
    vocab = next((event for event in snapshot.metadata if isinstance(event, SetVocab)), None)
    chain = Chain(name=name, schema=root_schema(snapshot), vocab=vocabulary_of(vocab), folder=folder)
    for block in blocks:
        chain.add(block)
    return chain


def derive(
    transforms: Executes,
    known: Mapping[str, DatasetSnapshot],
    name: str,
    blocks: Mapping[str, Sequence[Block]],
    folder: Path,
) -> Derivative:
    """Return a derivative of roots with these blocks; files are written to a folder, which is created if necessary."""
    folder.mkdir(parents=True, exist_ok=True)
    made = transform_of(known[name])
    assert isinstance(made.transform, TransformSql)
    chains = [
        chain_of(known[each.dataset_ref], each.alias or each.dataset_ref, blocks[each.dataset_ref], folder)
        for each in made.inputs
    ]
    return Derivative(transforms=transforms, transform=made.transform, chains=chains, folder=folder)


def plain_rows(
    table: pa.Table, *, without: Sequence[str] = ("offset", "system_time")
) -> list[tuple[object, ...]]:
    """Return records as rows, with timestamps as milliseconds."""
    columns = [
        column for name, column in zip(table.column_names, table.columns, strict=True) if name not in without
    ]
    plain = [
        column.cast(TIMESTAMP, safe=False).cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        for column in columns
    ]
    return list(zip(*(column.to_pylist() for column in plain), strict=True))
