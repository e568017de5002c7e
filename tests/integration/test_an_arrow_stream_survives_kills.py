import io
import time
from collections.abc import Iterator

import grpc
import pyarrow as pa
from odf_testing.embedded import PATIENCE
from odf_testing.story import APPEND, Story, root

from odf_common.proto.odf.node.v1 import push_pb2 as pb
from odf_common.proto.odf.node.v1.push_pb2_grpc import PushStub

ORDERS = "pushed.as.arrow"
BATCHES = 12
RECORDS = 1000  # of a batch


def test_a_stream_that_is_opened_again_after_kills_adds_each_record_once(story: Story) -> None:
    story.add(root(ORDERS, ("id BIGINT", "at TIMESTAMP(3)"), merge=APPEND, event_time="at"))
    kills = [("ingest", 3), ("coordinator", 6), ("ingest", 9)]
    killed: list[tuple[str, int]] = []
    acknowledged, opened = 0, 0
    until = time.monotonic() + 2 * PATIENCE
    while acknowledged < BATCHES:
        assert time.monotonic() < until, f"batch {acknowledged} is not acknowledged"
        try:
            with story.node.grpc_channel("ingest") as connection:
                opened += 1
                for ack in PushStub(connection).Stream(parts(acknowledged), timeout=PATIENCE):
                    assert ack.next >= acknowledged, "what was acknowledged is committed"
                    acknowledged = ack.next
                    if kills and acknowledged >= kills[0][1]:
                        part, _ = kills.pop(0)
                        killed.append((part, story.node.kill(part)))
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            time.sleep(0.1)
    assert opened > 1
    for part, old in killed:
        story.node.eventually(lambda part=part, old=old: story.node.pid(part) not in {None, old})  # type: ignore[misc]
    assert story.chain(ORDERS).column("id") == list(range(BATCHES * RECORDS))


def parts(first: int) -> Iterator[pb.StreamPart]:
    """Yield the header, and the batches from `first` on."""
    yield pb.StreamPart(header=pb.StreamHeader(ref=ORDERS, stream_id="numbers"))
    for number in range(first, BATCHES):
        ids = pa.array(range(number * RECORDS, (number + 1) * RECORDS), pa.int64())
        batch = pa.record_batch({"id": ids, "at": ids.cast(pa.timestamp("ms", "UTC"))})
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        yield pb.StreamPart(batch=pb.StreamBatch(sequence=number, arrow=sink.getvalue()))
