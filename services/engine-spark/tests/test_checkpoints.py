"""Checkpoints are untrusted input: a malformed one is refused."""

import pyarrow as pa
import pytest
from odf_testing.engine import COUNTS, HOUR, Block, Make, flight, sql
from structlog.testing import capture_logs

from odf_common.errors import InvalidInput


def test_a_hostile_checkpoint_is_refused(derive: Make) -> None:
    hourly = derive(sql(COUNTS), flights=[Block(rows=[flight(1)]), Block(watermark=HOUR)])
    hourly.pull(1)
    assert hourly.checkpoint is not None
    raw = hourly.checkpoint.read_bytes()
    for broken in (
        b"",
        b"junk",
        raw[:-40],
        raw.replace(b"odf-engine-spark/3", b"odf-engine-spark/9"),
        raw[:200],
    ):
        hourly.checkpoint.write_bytes(broken)
        with pytest.raises(InvalidInput, match="not a checkpoint"):
            hourly.pull(2)


def test_each_request_logs_its_records_and_the_size_of_its_checkpoint(derive: Make) -> None:
    hourly = derive(sql(COUNTS), flights=[Block(rows=[flight(1)]), Block(watermark=HOUR)])
    with capture_logs() as logs:
        hourly.pull(1)
        assert hourly.checkpoint is not None
        size = hourly.checkpoint.stat().st_size
        hourly.pull(2)
    prepared = [one["event"] for one in logs if "prepared" in one["event"]]
    assert prepared[-1] == "prepared transform reused"
    first, second = [one for one in logs if one["event"] == "transform executed"]
    assert (first["inputs"], first["records"], first["checkpoint_bytes"]) == ({"flights": 1}, 0, size)
    assert (second["inputs"], second["records"]) == ({"flights": 0}, 1)


def test_a_watermark_beyond_all_times_in_a_checkpoint_is_refused(derive: Make) -> None:
    hourly = derive(sql(COUNTS), flights=[Block(rows=[flight(1)], watermark=HOUR), Block(watermark=2 * HOUR)])
    hourly.pull(1)
    assert hourly.checkpoint is not None
    raw = hourly.checkpoint.read_bytes()
    with pa.ipc.open_stream(raw) as stream:
        table = stream.read_all()
    metadata = {**(table.schema.metadata or {}), b"watermark": b"1" + b"0" * 30}
    with pa.ipc.new_stream(hourly.checkpoint, table.schema.with_metadata(metadata)) as stream:
        stream.write_table(table.replace_schema_metadata(metadata))
    with pytest.raises(InvalidInput, match="out of range"):
        hourly.pull(2)
