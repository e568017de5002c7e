"""Datasets and records as rows that people and programs can read."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from odf_common.metadata.scalars import Timestamp
from odf_common.proto.odf.node.v1.coordinator_pb2 import Comparison, DatasetSummary

if TYPE_CHECKING:
    import pyarrow as pa

# Years past 9999, and time zones that this machine does not know.
_NO_PYTHON_VALUE: Final = (OverflowError, ValueError, KeyError)


def summary_row(summary: DatasetSummary) -> dict[str, object]:
    """Return one dataset as a row of `odf list`; times as RFC 3339, None where there is no value.

    Of a dataset that cannot be read there are names and the problem.
    """
    is_read = bool(summary.head)
    return {
        "alias": summary.alias,
        "kind": summary.kind or None,
        "blocks": summary.blocks if is_read else None,
        "records": summary.records if is_read else None,
        "watermark": Timestamp(summary.watermark) if summary.HasField("watermark") else None,
        "updated": Timestamp(summary.system_time) if is_read else None,
        "problem": summary.problem or None,
        "dropped": summary.dropped if is_read else None,
        "late": summary.late if is_read else None,
        "id": summary.dataset_id,
        "head": summary.head or None,
        "pushTopics": dict(summary.push_topics),
    }


def comparison_row(compared: Comparison, left: str, right: str) -> dict[str, object]:
    """Return how two chains stand to each other: `left` and `right` name how many blocks only one of them has."""
    return {
        "relation": compared.relation,
        left: compared.left,
        right: compared.right,
        "common": compared.common or None,
    }


def record_rows(table: "pa.Table") -> Iterator[Mapping[str, object]]:
    """Iterate over records as mappings, in order.

    A time that Python has no value for, which a slice may hold all the same, is text: its number and its type.
    """
    for batch in table.to_batches(max_chunksize=10_000):
        try:
            yield from batch.to_pylist()
        except _NO_PYTHON_VALUE:
            columns = [[_held(value) for value in column] for column in batch.columns]
            yield from (dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True))


def _held(value: "pa.Scalar") -> object:
    try:
        return value.as_py()
    except _NO_PYTHON_VALUE:
        if hasattr(value, "keys"):
            return {name: _held(value[name]) for name in value}
        if hasattr(value, "values"):
            return [_held(item) for item in value.values]
        return f"{value.value} {value.type}"


def arrow_table(chunks: Iterable[bytes]) -> "pa.Table":
    """Return the table of an Arrow IPC stream that came in pieces."""
    import pyarrow as pa  # noqa: PLC0415 - slow to import, and few commands need it

    with pa.ipc.open_stream(pa.py_buffer(b"".join(chunks))) as reader:
        return reader.read_all()
