"""What is nested deeply, or is very large, is refused clearly wherever it enters; what is written can be read."""

from typing import Any

import pytest

from odf_common.codec import flatbuffers_writer
from odf_common.codec.flatbuffers import decode_event, encode_event, encode_message
from odf_common.codec.model import MAX_DEPTH
from odf_common.codec.yaml import event_from_text, to_yaml
from odf_common.errors import InvalidInput
from odf_common.metadata.events import SetDataSchema
from odf_common.metadata.schema import DataField, DataSchema, DataTypeInt32, DataTypeOption

AROUND = 4  # tables around a column's type: wrapper, event, schema, field
DEEPEST = MAX_DEPTH - AROUND - 1  # options around a plain type


def nested(depth: int) -> SetDataSchema:
    inner: Any = DataTypeInt32()
    for _ in range(depth):
        inner = DataTypeOption(inner=inner)
    return SetDataSchema(schema=DataSchema(fields=(DataField(name="a", type=inner),)))


def test_the_deepest_types_come_back() -> None:
    event = nested(DEEPEST)
    assert decode_event(encode_event(event)) == event
    assert event_from_text(to_yaml(event).encode(), "file") == event


@pytest.mark.parametrize("depth", [DEEPEST + 1, 150])
def test_types_that_nobody_could_read_again_are_not_written(depth: int) -> None:
    with pytest.raises(InvalidInput, match="nested deeper than 64"):
        encode_event(nested(depth))


def test_what_others_nest_deeper_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flatbuffers_writer, "MAX_DEPTH", 1000)
    raw = encode_event(nested(DEEPEST + 1))
    with pytest.raises(InvalidInput, match="nested deeper than 64"):
        decode_event(raw)


def test_a_failed_writing_leaves_nothing_behind() -> None:
    with pytest.raises(InvalidInput):
        encode_message(nested(150))
    test_the_deepest_types_come_back()
