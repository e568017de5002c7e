"""Converts datasets and records to rows, for tables and JSON."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

from odf_cli.clients import Stuck
from odf_cli.output import print_rows
from odf_common.codec.times import time_of
from odf_common.data.json_values import distinct, record_rows
from odf_common.metadata.scalars import Timestamp
from odf_common.proto.odf.node.v1.coordinator_pb2 import Comparison, DatasetSummary
from odf_common.service.lean_imports import lean_imports

if TYPE_CHECKING:
    import pyarrow as pa

OPERATION_COLUMN: Final = "op"
OPERATION_SIGNS: Final = ("+A", "-R", "-C", "+C")


def summary_row(summary: DatasetSummary) -> dict[str, object]:
    """Return a dataset as a row of `odf list`, with times as RFC 3339, and None for unknown values.

    If the dataset cannot be read, only its names and the problem are set.
    """
    is_read = bool(summary.head)
    return {
        "alias": summary.alias,
        "kind": summary.kind or None,
        "blocks": summary.blocks if is_read else None,
        "records": summary.records if is_read else None,
        "watermark": time_of(summary.watermark) if summary.HasField("watermark") else None,
        "updated": time_of(summary.system_time) if is_read else None,
        **problem_of(summary),
        "dropped": summary.dropped if is_read else None,
        "late": summary.late if is_read else None,
        "rejected": summary.rejected if is_read else None,
        "rejectedReason": summary.rejected_reason or None,
        "id": summary.dataset_id,
        "head": summary.head or None,
        "pushTopics": dict(summary.push_topics),
        "exposed": summary.exposed or None,
        "waitsForInput": summary.waits_for_input or None,
        "waitsFor": summary.waits_for or None,
        "waitsRemedy": summary.waits_remedy or None,
    }


def problem_of(summary: DatasetSummary) -> dict[str, object]:
    """Return a dataset's problem, its start time and its remedy; each is None if absent or unknown."""
    return {
        "problem": summary.problem or None,
        "since": Timestamp(summary.since).whole_ms() if summary.HasField("since") else None,
        "remedy": summary.remedy or None,
    }


def with_stuck(row: Mapping[str, object], stuck: Mapping[str, Stuck], dataset_id: str) -> dict[str, object]:
    """Return a dataset's row with the stall of its push sources as its problem, unless it has another problem."""
    source = stuck.get(dataset_id)
    if row.get("problem") or source is None:
        return dict(row)
    return {**row, "problem": source.problem, "since": source.since, "remedy": source.remedy}


def comparison_row(compared: Comparison, left: str, right: str) -> dict[str, object]:
    """Return the relation of two chains as a row.

    `left` and `right` are the names of the fields with the number of blocks that only one of them has.
    """
    return {
        "relation": compared.relation,
        left: compared.left,
        right: compared.right,
        "common": compared.common or None,
    }


def print_records(table: "pa.Table", output: str) -> None:
    """Print records; tables show the operation as +A, -R, -C or +C, JSON shows its number."""
    rows: Sequence[Mapping[str, object]] = list(record_rows(table))
    if output == "table" and _has_operations(table.schema):
        rows = [{**row, OPERATION_COLUMN: operation_shown(row[OPERATION_COLUMN])} for row in rows]
    print_rows(rows, output, columns=distinct(table.column_names))


def operation_shown(value: object) -> object:
    """Return an operation in the notation of the specification; any other value unchanged."""
    return OPERATION_SIGNS[value] if isinstance(value, int) and 0 <= value < len(OPERATION_SIGNS) else value


def _has_operations(schema: "pa.Schema") -> bool:
    """Return whether the records have a column `op` of a type that operations have."""
    return schema.names.count(OPERATION_COLUMN) == 1 and str(schema.field(OPERATION_COLUMN).type) in (
        "uint8",
        "int16",
        "int32",
    )


def arrow_table(chunks: Iterable[bytes]) -> "pa.Table":
    """Return the table of an Arrow IPC stream received in chunks."""
    # Arrow's own conversion imports numpy, which takes longer than reading a few records.
    with nullcontext() if "pyarrow" in sys.modules else lean_imports("numpy"):
        import pyarrow as pa

    with pa.ipc.open_stream(pa.py_buffer(b"".join(chunks))) as reader:
        return reader.read_all()
