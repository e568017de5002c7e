"""Csv: delimiter-separated text with Spark's options (spec: ReadStep.Csv); one message is one record.

With `header`, columns are matched by name, otherwise by position. A message may have a header line before its record.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from odf_common.errors import InvalidInput
from odf_common.metadata.events import ReadStepCsv
from odf_ingest.read.csv_format.csv_parse import (
    header_names,
    in_order_of,
    inferred_types,
    misfits,
    parse,
    require_distinct,
)
from odf_ingest.read.csv_format.csv_records import BadQuote, Grammar, grammar_of, usual_width
from odf_ingest.read.encoding import decodable, require_utf8, require_utf8_lines, to_utf8
from odf_ingest.read.format import (
    FileRecords,
    infer_batch,
    infer_records,
    read_batch,
    read_file,
    read_inferred,
    read_records,
    split_file,
    suspects,
)
from odf_ingest.read.isolate_bad_records import read_one_by_one

_Message = tuple[bytes | None, bytes]  # header, if any, and record


@read_records.register(ReadStepCsv)
def _records(step: ReadStepCsv, values: Sequence[bytes], schema: pa.Schema | None) -> pa.Table:
    if schema is None:
        return _read_inferred(step, values, infer_records(step, values, None))
    return _read(step, values, schema, is_open=False)


@read_inferred.register(ReadStepCsv)
def _read_inferred(step: ReadStepCsv, values: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    return _read(step, values, schema, is_open=bool(step.header))


@read_file.register(ReadStepCsv)
def _file(step: ReadStepCsv, file: Path, schema: pa.Schema | None) -> pa.Table:
    return _batch(step, file.read_bytes(), schema)


@read_batch.register(ReadStepCsv)
def _batch(step: ReadStepCsv, value: bytes, schema: pa.Schema | None) -> pa.Table:
    text, grammar = to_utf8(value, step.encoding), grammar_of(step)
    if grammar.is_blank(text):
        if step.header:
            # A truncated file must not count as an empty snapshot.
            raise InvalidInput(text="has no header")
        return (schema or pa.schema([])).empty_table()
    column_schema = infer_batch(step, value, None) if schema is None else schema
    assert column_schema is not None
    require_utf8_lines(text)
    names, header, body = column_schema.names, b"", text
    if step.header:
        header, body = _header_of(grammar, text)
        names = header_names(step, header)
    order = in_order_of(names, column_schema, is_open=False)
    try:
        grammar.require_closed(body)
        table = order.empty_table() if grammar.is_blank(body) else parse(step, body, order)
        if header and header in body:
            _require_no_header(header, names, body.splitlines())
    except InvalidInput:
        skipped = text.count(b"\n") - body.count(b"\n")
        table = _by_record(step, body, order, skipped=skipped, header=header)
    return table.select(column_schema.names)


@split_file.register(ReadStepCsv)
def _split(step: ReadStepCsv, content: bytes) -> FileRecords:
    text = to_utf8(content, step.encoding)
    header, body = _header_of(grammar_of(step), text) if step.header else (b"", text)
    records, places = _split_with_places(step, body, skipped=text.count(b"\n") - body.count(b"\n"))
    before = header + b"\n" if step.header else b""
    return FileRecords(step=replace(step, encoding=None), values=records, places=places, header=before)


@suspects.register(ReadStepCsv)
def _suspects(
    step: ReadStepCsv, values: Sequence[bytes], schema: pa.Schema | None
) -> Mapping[int, str | None]:
    grammar = grammar_of(step)
    reasons: dict[int, str | None] = {}
    try:
        by_header = _messages(step, grammar, values)
    except InvalidInput:
        by_header = {}
        for number, value in enumerate(values):
            try:
                header, record = _message(step, grammar, to_utf8(value, step.encoding))
            except InvalidInput:
                reasons[number] = None
            else:
                by_header.setdefault(header, []).append((number, record))
    for header, numbered in by_header.items() if schema is not None else ():
        rows = _misfits(step, header, [record for _, record in numbered], schema)
        reasons |= {numbered[row][0]: None for row in rows}
    return reasons


def _misfits(
    step: ReadStepCsv, header: bytes | None, records: Sequence[bytes], schema: pa.Schema
) -> AbstractSet[int]:
    """Return the indices of the records that probably have a bad value; all of them if their header is bad."""
    try:
        names = schema.names if header is None else header_names(step, header)
        repeated = {number for number, record in enumerate(records) if record == header}
        return misfits(step, records, in_order_of(names, schema, is_open=True)) | repeated
    except InvalidInput:
        return frozenset(range(len(records)))


@infer_records.register(ReadStepCsv)
def _infer(step: ReadStepCsv, values: Sequence[bytes], base: pa.Schema | None) -> pa.Schema:
    grammar = grammar_of(step)
    messages = []
    for value in decodable(values, step.encoding):
        try:
            message = _message(step, grammar, value)
            require_utf8(message[1])
        except InvalidInput:
            # It will be rejected when it is read.
            continue
        messages.append(message)
    if step.header:
        return _infer_by_name(step, messages, base)
    before = _numbered_columns(base)
    records = [record for _, record in messages]
    if before or not records:
        return pa.schema(before)
    width = usual_width(grammar, records)
    names = [f"f{number}" for number in range(width)]
    return _types_of(step, names, [record for record in records if grammar.width(record) == width])


@infer_batch.register(ReadStepCsv)
def _infer_batch(step: ReadStepCsv, value: bytes, base: pa.Schema | None) -> pa.Schema:
    grammar = grammar_of(step)
    text = to_utf8(value, step.encoding)
    require_utf8_lines(text)
    if grammar.is_blank(text):
        return pa.schema([])
    if step.header:
        header, body = _header_of(grammar, text)
        names = header_names(step, header)
    else:
        body = text
        names = [f"f{number}" for number in range(grammar.width(text[: grammar.end(text)]))]
    before = {} if base is None else {column.name: column for column in base}
    types = inferred_types(step, names, [body])
    return pa.schema([before.get(column.name, column) for column in types])


def _infer_by_name(step: ReadStepCsv, messages: Sequence[_Message], base: pa.Schema | None) -> pa.Schema:
    """Return the columns of `base`, followed by the other columns in the headers of the messages."""
    columns: dict[str, pa.Field] = {} if base is None else {column.name: column for column in base}
    for header, records in _by_header(messages).items():
        if header is None:
            continue
        try:
            names = header_names(step, header)
            require_distinct(names)
        except InvalidInput:
            continue
        width = grammar_of(step).width
        types = _types_of(step, names, [record for _, record in records if width(record) == len(names)])
        for column in types:
            before = columns.setdefault(column.name, column)
            if before.type != column.type and (base is None or column.name not in base.names):
                columns[column.name] = column.with_type(pa.string())
    return pa.schema(columns.values())


def _types_of(step: ReadStepCsv, names: Sequence[str], records: Sequence[bytes]) -> pa.Schema:
    """Return columns with these names. They are strings unless another type can be inferred from the records."""
    try:
        return inferred_types(step, names, records)
    except InvalidInput:
        return pa.schema([(name, pa.string()) for name in names])


def _numbered_columns(base: pa.Schema | None) -> list[pa.Field]:
    """Return the existing columns f0, f1, … of records without a header."""
    fields: list[pa.Field] = []
    while base is not None and f"f{len(fields)}" in base.names:
        fields.append(base.field(f"f{len(fields)}"))
    return fields


def _read(step: ReadStepCsv, values: Sequence[bytes], schema: pa.Schema, *, is_open: bool) -> pa.Table:
    """Return one record per message. With `is_open`, columns are optional, and taken from the headers."""
    grammar = grammar_of(step)
    tables, places = [], []
    for header, numbered in _messages(step, grammar, values).items():
        names = schema.names if header is None else header_names(step, header)
        if header is None and is_open:
            raise InvalidInput(
                text="has no header, and the source declares no schema: its columns have no names"
            )
        records = [record for _, record in numbered]
        if header is None and step.header and grammar.separator.join(names).encode() in records:
            raise InvalidInput(text="is the header, without a record")
        _require_no_header(header, names, records)
        order = in_order_of(names, schema, is_open=is_open)
        table = parse(step, b"\n".join(records), order)
        if len(table) != len(records):
            raise InvalidInput(text="is not one line of values")
        tables.append(_complete(table, schema))
        places += [number for number, _ in numbered]
    if len(tables) == 1:
        return tables[0]
    return pa.concat_tables(tables).take(pa.array(np.argsort(places)))


def _messages(
    step: ReadStepCsv, grammar: Grammar, values: Sequence[bytes]
) -> dict[bytes | None, list[tuple[int, bytes]]]:
    """Return the indices and records of messages by header; raises `InvalidInput`."""
    texts = [to_utf8(value, step.encoding).rstrip(b"\r\n") for value in values]
    joined = b"\n".join(texts)
    if all(texts) and joined.count(b"\n") == len(texts) - 1 and grammar.is_record_a_line(joined):
        return {None: list(enumerate(texts))}
    header, records = _common_header(texts) if step.header else (b"", [])
    joined = b"\n".join((header, *records))
    is_plain = joined.count(b"\n") == len(records) and grammar.is_record_a_line(joined)
    if header and all(records) and is_plain:
        return {header: list(enumerate(records))}
    return _by_header([_message(step, grammar, text) for text in texts])


def _common_header(texts: Sequence[bytes]) -> tuple[bytes, list[bytes]]:
    """Return the first line that all messages share, and the rest of each message; empty values if there is none."""
    line, end, _ = texts[0].partition(b"\n") if texts else (b"", b"", b"")
    before = line + end
    if not end or not all(text.startswith(before) for text in texts):
        return b"", []
    return line, [text[len(before) :] for text in texts]


def _complete(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with all columns of the schema, in its order."""
    for column in schema:
        if column.name not in table.column_names:
            table = table.append_column(column, pa.nulls(len(table), column.type))
    return table.select(schema.names)


def _by_header(messages: Sequence[_Message]) -> dict[bytes | None, list[tuple[int, bytes]]]:
    """Return the indices and records of messages by header."""
    records: dict[bytes | None, list[tuple[int, bytes]]] = {}
    for number, (header, record) in enumerate(messages):
        records.setdefault(header, []).append((number, record))
    return records


def _message(step: ReadStepCsv, grammar: Grammar, value: bytes) -> _Message:
    """Return a message's header, if any, and its record; raises `InvalidInput`."""
    text = value.rstrip(b"\r\n")
    if b"\n" not in text and grammar.is_plain(text):
        records = [text] if text else []
    else:
        records = [record for _, record in grammar.split(text)]
    if len(records) == 1:
        return None, records[0]
    if step.header and len(records) == 2:
        return records[0], records[1]
    count = len(records) - 1 if step.header else len(records)
    raise InvalidInput(text=f"has {count} records instead of one" if records else "is empty")


def _header_of(grammar: Grammar, text: bytes) -> tuple[bytes, bytes]:
    """Return the first record of a text, and the rest of its line."""
    text = text.lstrip(b"\r\n")
    end = grammar.end(text)
    body = text[end:]
    return text[:end], body.removeprefix(b"\r").removeprefix(b"\n")


def _by_record(step: ReadStepCsv, body: bytes, order: pa.Schema, *, skipped: int, header: bytes) -> pa.Table:
    """Return the records, read in small groups; raises `InvalidInput` with the line of the first bad record.

    `skipped` is the number of lines before `body` in the file.
    """
    records, places = _split_with_places(step, body, skipped=skipped)

    def read(records: Sequence[bytes]) -> pa.Table:
        _require_no_header(header, order.names, records)
        table = parse(step, b"\n".join(records), order)
        if len(table) != len(records):
            raise InvalidInput(text="is not one line of values")
        return table

    return read_one_by_one(records, places, read, lambda some: dict.fromkeys(misfits(step, some, order)))


def _require_no_header(header: bytes | None, names: Sequence[str], records: Sequence[bytes]) -> None:
    """Raise `InvalidInput` if a record repeats the header, as in concatenated files.

    This is not checked if there is only one column: its name may be a value.
    """
    if header and len(names) > 1 and header in records:
        raise InvalidInput(text="is the header again, not a record")


def _split_with_places(step: ReadStepCsv, body: bytes, *, skipped: int) -> tuple[list[bytes], list[str]]:
    """Return the records and the line of each; raises `InvalidInput` with the line of a bad quote."""
    try:
        records = grammar_of(step).split(body)
    except BadQuote as error:
        raise InvalidInput(where=f"line {error.line + skipped}", text=error.text) from error
    return [record for _, record in records], [f"line {line + skipped}" for line, _ in records]
