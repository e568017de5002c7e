from pathlib import Path

import pyarrow as pa
import pytest

from odf_common.data.slices import hash_slice, read_slice, without_nulls_behind_nulls, write_slice
from odf_common.errors import InvalidInput

INNER = pa.struct([pa.field("n", pa.int32(), nullable=False), pa.field("t", pa.string())])
OUTER = pa.struct(
    [
        pa.field("s", INNER, nullable=False),
        pa.field("t", pa.string(), nullable=False),
        pa.field("u", pa.uuid(), nullable=False),
        pa.field("b", pa.bool_(), nullable=False),
        pa.field("l", pa.list_(pa.field("element", pa.int8())), nullable=False),
    ]
)


def a_value(number: int) -> dict[str, object]:
    return {"s": {"n": number, "t": None}, "t": str(number), "u": bytes(16), "b": True, "l": [number, None]}


def records(*values: dict[str, object] | None) -> pa.Table:
    parts = []
    for field in OUTER.fields:
        items = [None if value is None else value[field.name] for value in values]
        if field.type == pa.uuid():
            parts.append(pa.ExtensionArray.from_storage(pa.uuid(), pa.array(items, pa.binary(16))))
        elif field.type == INNER:
            loose = pa.array(items, pa.struct([("n", pa.int32()), ("t", pa.string())]))
            halves = [loose.field(0), loose.field(1)]
            parts.append(pa.StructArray.from_arrays(halves, fields=list(INNER), mask=loose.is_null()))
        else:
            parts.append(pa.array(items, field.type))
    missing = pa.array([value is None for value in values])
    column = pa.StructArray.from_arrays(parts, fields=list(OUTER), mask=missing)
    return pa.table({"offset": pa.array(range(len(values)), pa.uint64()), "c": column})


@pytest.mark.parametrize("start", [0, 1, 2])
def test_a_null_struct_with_required_parts_is_stored(tmp_path: Path, start: int) -> None:
    table = records(a_value(1), None, a_value(2), None).slice(start)
    written = write_slice(table, tmp_path / "slice")
    assert hash_slice(tmp_path / "slice") == written.logical_hash
    assert read_slice(tmp_path / "slice").to_pylist() == table.to_pylist()


def test_one_required_part_among_others_is_enough(tmp_path: Path) -> None:
    values = [pa.array([1, None], pa.int32()), pa.array(["a", None])]
    column = pa.StructArray.from_arrays(values, fields=list(INNER), mask=pa.array([False, True]))
    table = pa.table({"offset": pa.array([0, 1], pa.uint64()), "c": column})
    written = write_slice(table, tmp_path / "slice")
    assert hash_slice(tmp_path / "slice") == written.logical_hash
    assert read_slice(tmp_path / "slice").to_pylist() == table.to_pylist()


def test_a_null_where_a_value_is_required_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="'t' is declared non-nullable"):
        write_slice(records(a_value(1) | {"t": None}), tmp_path / "slice")


def test_other_columns_are_left_unchanged() -> None:
    table = pa.table({"n": [1, None], "s": [{"a": None}, None]})
    made = without_nulls_behind_nulls(table)
    assert [made.column(at).chunk(0).equals(table.column(at).chunk(0)) for at in range(2)] == [True, True]
    assert made.schema == table.schema
