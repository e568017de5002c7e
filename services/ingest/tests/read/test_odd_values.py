"""An odd value is a record, or is rejected with a reason, independently of its neighbours."""

from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStep, ReadStepCsv, ReadStepNdJson
from odf_ingest.read import infer_records, read_batch, read_inferred, read_records, suspects
from odf_ingest.read.csv_format.csv_records import grammar_of
from odf_ingest.read.isolate_bad_records import isolate_bad_records

from .odd_values import JSON_STEPS, NESTED, OPTIONS, STEPS, TYPES, declared, messages_of, odd_messages


def rows_and_reasons(
    read: Callable[[Sequence[bytes]], pa.Table], faults: Any, some: Sequence[bytes]
) -> list[Any]:
    """Return for each value its record, as bytes, or the reason why it was rejected."""
    isolated = isolate_bad_records(some, read, faults, chunk=8)
    outcomes: list[Any] = [None] * len(some)
    for place, reason in isolated.bad.items():
        outcomes[place] = reason
    rows = [] if isolated.table is None else isolated.table.to_batches()
    shown = [
        tuple(column.slice(row, 1).to_string() for column in one.columns)
        for one in rows
        for row in range(len(one))
    ]
    for place, row in zip(isolated.kept.tolist(), shown, strict=True):
        outcomes[place] = row
    return outcomes


@given(data=st.data())
@pytest.mark.parametrize("step", [*JSON_STEPS, *(ReadStepCsv(**some) for some in OPTIONS)])  # type: ignore[arg-type]
def test_the_result_of_a_message_does_not_depend_on_adjacent_ones(
    step: ReadStep, data: st.DataObject
) -> None:
    types = TYPES if isinstance(step, ReadStepCsv) else [*TYPES, *NESTED]
    schema = declared(step, data.draw(st.sampled_from(types)))
    some = data.draw(st.lists(odd_messages(step), min_size=2, max_size=12))

    def read(values: Sequence[bytes]) -> pa.Table:
        return read_records(step, values, schema)

    def faults(values: Sequence[bytes]) -> Any:
        return suspects(step, values, schema)

    alone = [rows_and_reasons(read, lambda _: {}, [one])[0] for one in some]
    assert rows_and_reasons(read, faults, some) == alone


@given(data=st.data())
@pytest.mark.parametrize("step", [*STEPS, ReadStepCsv(infer_schema=True), ReadStepCsv(header=True)])
def test_inferred_columns_hold_for_each_message_alone(step: ReadStep, data: st.DataObject) -> None:
    some = data.draw(st.lists(odd_messages(step), min_size=1, max_size=12))
    if isinstance(step, ReadStepCsv) and step.header:
        some = [b"n,c\n" + one for one in some]
    schema = infer_records(step, some, None)

    def read(values: Sequence[bytes]) -> pa.Table:
        return read_inferred(step, values, schema)

    alone = [rows_and_reasons(read, lambda _: {}, [one])[0] for one in some]
    assert rows_and_reasons(read, lambda values: suspects(step, values, schema), some) == alone
    again = infer_records(step, some, schema)
    assert again.equals(schema)


@pytest.mark.parametrize("step", JSON_STEPS)
def test_without_any_column_each_message_is_refused_for_its_own_fault(step: ReadStep) -> None:
    some = [b'{"c":null}', *[b'{"c":nan}'] * 7, b'null{"c":0}', b"{}", b'{"c":1,"c":1}']
    schema = infer_records(step, some[:-1], None)
    assert len(schema) == 0
    assert rows_and_reasons(
        partial(read_inferred, step, schema=schema), partial(suspects, step, schema=schema), some
    ) == [
        "has no column with a value",
        *["is not JSON: Expecting value: line 1 column 6 (char 5)"] * 7,
        reason_alone(step, b'null{"c":0}', schema),
        "has no column with a value",
        "column c: is duplicated",
    ]


def reason_alone(step: ReadStep, one: bytes, schema: pa.Schema) -> str:
    with pytest.raises(InvalidInput) as refused:
        read_inferred(step, [one], schema)
    return str(refused.value)


@given(data=st.data())
@pytest.mark.parametrize("step", [ReadStepNdJson(), *(ReadStepCsv(**some) for some in OPTIONS)])  # type: ignore[arg-type]
def test_a_file_has_the_records_of_its_lines_or_is_refused_for_one_of_them(
    step: ReadStep, data: st.DataObject
) -> None:
    types = TYPES if isinstance(step, ReadStepCsv) else [*TYPES, *NESTED]
    schema = declared(step, data.draw(st.sampled_from(types)))
    lines = data.draw(st.lists(odd_messages(step).filter(partial(is_line, step)), min_size=1, max_size=8))
    alone = [table_or_reason(partial(read_records, step, [line], schema)) for line in lines]
    outcome = table_or_reason(partial(read_batch, step, b"\n".join(lines), schema))
    reasons = [f"line {number}: {one}" for number, one in enumerate(alone, 1) if isinstance(one, str)]
    if reasons:
        assert outcome in reasons
    else:
        assert isinstance(outcome, pa.Table)
        assert outcome.to_string() == pa.concat_tables(alone).combine_chunks().to_string()


def is_line(step: ReadStep, text: bytes) -> bool:
    """Return whether a message is one line of a file."""
    if text.strip() != text or not text or set(b"\n\r").intersection(text) or text.startswith(BOM_UTF8):
        return False
    try:
        return not isinstance(step, ReadStepCsv) or len(grammar_of(step).split(text)) == 1
    except InvalidInput:
        return False


def table_or_reason(read: Callable[[], pa.Table]) -> pa.Table | str:
    try:
        return read()
    except InvalidInput as error:
        return str(error)


@pytest.mark.parametrize(
    ("step", "type_"),
    [
        (step, type_)
        for step in STEPS
        for type_ in (TYPES if isinstance(step, ReadStepCsv) else [*TYPES, *NESTED])
    ],
)
def test_an_odd_message_is_a_record_or_is_rejected_for_a_reason(step: ReadStep, type_: str) -> None:
    schema = declared(step, type_)
    for message in messages_of(step):
        outcome = table_or_reason(partial(read_records, step, [message], schema))
        assert outcome
        if isinstance(outcome, pa.Table):
            outcome.validate(full=True)
            assert len(outcome) == 1


@pytest.mark.parametrize("step", STEPS)
def test_a_file_or_whole_batch_of_odd_values_is_read_or_refused(step: ReadStep) -> None:
    for message in messages_of(step):
        for text in (message, b"[%s]" % message, message + b"\n" + message):
            for schema in (declared(step, "DOUBLE"), declared(step, "BIGINT"), None):
                outcome = table_or_reason(partial(read_batch, step, text, schema))
                assert isinstance(outcome, pa.Table) or outcome
