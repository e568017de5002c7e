"""Datasets and records as rows, for tables and JSON."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from odf_common.cli.clients import Stuck
from odf_common.cli.output import print_rows
from odf_common.codec.times import time_of
from odf_common.metadata.scalars import NANOS, Timestamp
from odf_common.proto.odf.node.v1.coordinator_pb2 import Comparison, DatasetSummary

if TYPE_CHECKING:
    import pyarrow as pa

OPERATION: Final = "op"
OPERATIONS: Final = ("+A", "-R", "-C", "+C")
SECONDS_OF_DAY: Final = 86_400
# Raised for years past 9999, time zones unknown to this machine, invalid UTF-8, duplicate field names.
_NO_PYTHON_VALUE: Final = (ArithmeticError, LookupError, NotImplementedError, OSError, TypeError, ValueError)


def summary_row(summary: DatasetSummary) -> dict[str, object]:
    """Return a dataset as a row of `odf list`; times as RFC 3339, None for missing values.

    A dataset that cannot be read has only its names and the problem.
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
    }


def problem_of(summary: DatasetSummary) -> dict[str, object]:
    """Return what is wrong with a dataset, since when, and what to do; None if nothing is, or if unknown."""
    return {
        "problem": summary.problem or None,
        "since": Timestamp(summary.since).whole_ms() if summary.HasField("since") else None,
        "remedy": summary.remedy or None,
    }


def with_stuck(row: Mapping[str, object], stuck: Mapping[str, Stuck], dataset_id: str) -> dict[str, object]:
    """Return a dataset's row with the problem of its push sources, unless it has another problem."""
    source = stuck.get(dataset_id)
    if row.get("problem") or source is None:
        return dict(row)
    return {**row, "problem": source.problem, "since": source.since, "remedy": source.remedy}


def comparison_row(compared: Comparison, left: str, right: str) -> dict[str, object]:
    """Return how two chains are related; `left` and `right` are the fields for the number of blocks only in one."""
    return {
        "relation": compared.relation,
        left: compared.left,
        right: compared.right,
        "common": compared.common or None,
    }


def record_rows(table: "pa.Table") -> Iterator[Mapping[str, object]]:
    """Iterate over records as mappings, in order.

    A value without a Python equivalent becomes a string; a time then has its number and type.
    """
    table = table.rename_columns(_distinct(table.column_names))
    is_direct = not any(_has_nanoseconds(kind) for kind in table.schema.types)
    for batch in table.to_batches(max_chunksize=10_000):
        try:
            rows = batch.to_pylist() if is_direct else None
        except _NO_PYTHON_VALUE:
            rows = None
        if rows is not None:
            yield from rows
        else:
            columns = [[_held(value) for value in column] for column in batch.columns]
            yield from (dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True))


def print_records(table: "pa.Table", output: str) -> None:
    """Print records; in a table the operation is +A, -R, -C or +C, in JSON its number."""
    rows: Sequence[Mapping[str, object]] = list(record_rows(table))
    if output == "table" and _has_operations(table.schema):
        rows = [{**row, OPERATION: operation_shown(row[OPERATION])} for row in rows]
    print_rows(rows, output, columns=_distinct(table.column_names))


def operation_shown(value: object) -> object:
    """Return an operation as the specification writes it; any other value unchanged."""
    return OPERATIONS[value] if isinstance(value, int) and 0 <= value < len(OPERATIONS) else value


def _has_operations(schema: "pa.Schema") -> bool:
    """Return whether the column `op` has a type that operations are stored or computed in."""
    return schema.names.count(OPERATION) == 1 and str(schema.field(OPERATION).type) in (
        "uint8",
        "int16",
        "int32",
    )


def _held(value: "pa.Scalar") -> object:
    """Return a value as its Python equivalent, or as a string if it has none."""
    try:
        return value.as_py() if not value.is_valid or not _has_nanoseconds(value.type) else _in_parts(value)
    except _NO_PYTHON_VALUE:
        return _in_parts(value)


def _in_parts(value: "pa.Scalar") -> object:
    import pyarrow.types as kind

    if kind.is_struct(value.type):
        names = [field.name for field in value.type]
        parts = [_held(value[number]) for number in range(len(names))]
        pairs = list(zip(names, parts, strict=True))
        return dict(pairs) if len(set(names)) == len(names) else pairs
    if kind.is_map(value.type):
        return [(_held(item[0]), _held(item[1])) for item in value.values]
    if kind.is_nested(value.type) and hasattr(value, "values"):
        return [_held(item) for item in value.values]
    if hasattr(value, "as_buffer"):  # a string that is not UTF-8
        return value.as_buffer().to_pybytes().decode(errors="backslashreplace")
    inner = getattr(value, "value", None)
    if hasattr(inner, "as_py"):  # of a dictionary, union, run or extension
        return _held(inner)
    if isinstance(inner, int) and _has_nanoseconds(value.type):
        return _exact(inner, value.type)
    return f"{inner} {value.type}"


def _exact(nanos: int, kind: "pa.DataType") -> object:
    """Return a value counted in nanoseconds exactly; Python's own types have microseconds only."""
    if str(kind).startswith("timestamp"):
        return Timestamp(nanos)
    if str(kind).startswith("duration"):
        return nanos / NANOS
    seconds, rest = divmod(nanos, NANOS)
    if not 0 <= seconds < SECONDS_OF_DAY:
        return f"{nanos} {kind}"
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{rest:09d}" if rest else text


def _has_nanoseconds(kind: "pa.DataType") -> bool:
    """Return whether values of a type, or values nested in them, are counted in nanoseconds."""
    return any(mark in str(kind) for mark in ("timestamp[ns", "time64[ns", "duration[ns"))


def _distinct(names: Iterable[str]) -> list[str]:
    """Return distinct names: a query may return two columns with the same name."""
    found: list[str] = []
    for name in names:
        number, other = 2, name
        while other in found:
            other, number = f"{name}_{number}", number + 1
        found.append(other)
    return found


def arrow_table(chunks: Iterable[bytes]) -> "pa.Table":
    """Return the table of an Arrow IPC stream received in chunks."""
    import pyarrow as pa

    with pa.ipc.open_stream(pa.py_buffer(b"".join(chunks))) as reader:
        return reader.read_all()
