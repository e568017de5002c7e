"""The schema that a root gets before its first record is the one that its first slice has."""

import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import yaml
from hypothesis import given
from hypothesis import strategies as st
from odf_testing.ingest_node import IngestNode
from odf_testing.manifests import Manifest, root
from structlog.testing import capture_logs

from odf_common.chain.walk import iterate
from odf_common.data.slices import slice_schema
from odf_common.metadata.events import AddData, SetDataSchema
from odf_common.ports.store import ObjectKind
from odf_coordinator.definitions.first_schemas import FirstSchemas

# DDL of a column, and a value of it.
TYPES: Final[Mapping[str, object]] = {
    "BOOLEAN": True,
    "INT": 7,
    "BIGINT": 7,
    "FLOAT": 1.5,
    "DOUBLE": 1.5,
    "DECIMAL(9,2)": "12.50",
    "DATE": "2026-03-01",
    "TIMESTAMP(3)": "2026-03-01T00:00:00Z",
    "TIMESTAMP": "2026-03-01T00:00:00Z",
    "STRING": "grey",
    "ARRAY<STRING>": ["x"],
    "STRUCT<a: TIMESTAMP, b: DECIMAL(4,1)>": {"a": "2026-03-01T00:00:00Z", "b": "1.5"},
}
MERGES: Final = ("Append", "Ledger", "Snapshot", "ChangelogStream", "UpsertStream")


class Node(IngestNode):
    """A node that declares the schemas of first slices."""

    def __init__(self, home: Path, pool: ThreadPoolExecutor, *, is_signed: bool) -> None:
        super().__init__(home, pool, is_signed=is_signed)
        self.schemas = FirstSchemas(
            datasets=self.datasets, committer=self.committer, engine=self.engine, is_signed=is_signed
        )

    def schemas_of(self, ref: str) -> list[object]:
        """Return the schemas that a chain declares, and those of its slices."""
        known = self.find(ref)
        found: list[object] = []
        for _, decoded, _ in iterate(self.datasets.reader(known.id), known.state.head):
            event = decoded.block.event
            if isinstance(event, SetDataSchema):
                found.append(event)
            if isinstance(event, AddData) and event.new_data is not None:
                slice_ = self.blobs.local_path(known.id, ObjectKind.DATA, event.new_data.physical_hash)
                found.append(slice_schema(slice_))
        return found


def manifests(merge: str, columns: list[str], vocabulary: str | None) -> list[Manifest]:
    strategy = {"kind": merge} | ({} if merge == "Append" else {"primaryKey": ["id"]})
    return [root(name, columns, merge=strategy, event_time=vocabulary) for name in ("early", "usual")]


@given(
    merge=st.sampled_from(MERGES),
    types=st.lists(st.tuples(st.sampled_from(sorted(TYPES)), st.booleans()), max_size=4),
    time=st.sampled_from((None, "DATE", "TIMESTAMP", "TIMESTAMP(3)")),
    is_renamed=st.booleans(),
    is_signed=st.booleans(),
)
def test_a_first_schema_is_that_of_the_first_slice(
    merge: str, types: list[tuple[str, bool]], time: str | None, *, is_renamed: bool, is_signed: bool
) -> None:
    columns: list[str] = ["id BIGINT"]
    row: dict[str, object] = {"id": 1}
    if merge in {"ChangelogStream", "UpsertStream"}:
        columns, row = [*columns, "op INT"], {**row, "op": 0}
    for number, (type_, is_required) in enumerate(types):
        columns.append(f"c{number} {type_}{' NOT NULL' if is_required else ''}")
        row[f"c{number}"] = TYPES[type_]
    vocabulary = "at" if is_renamed and time else None
    if time:
        columns.insert(1, f"{vocabulary or 'event_time'} {time}")
        row[vocabulary or "event_time"] = TYPES[time]
    with tempfile.TemporaryDirectory() as home, ThreadPoolExecutor(1) as pool, capture_logs():
        node = Node(Path(home), pool, is_signed=is_signed)
        node.add(*(yaml.safe_dump(one) for one in manifests(merge, columns, vocabulary)))
        node.schemas.commit([node.find("early")])
        assert len(node.schemas_of("early")) == 1

        for name in ("early", "usual"):
            node.ingest_row(name, row)

        assert node.schemas_of("early") == node.schemas_of("usual")
