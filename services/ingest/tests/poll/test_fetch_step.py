"""What all kinds of fetch steps have in common."""

from odf_common.metadata.scalars import Timestamp
from odf_ingest.prepare.batch import as_batch


def test_polled_messages_are_a_batch_of_one_partition() -> None:
    batch = as_batch("mqtt://host/topic", [b"a", b"bcd"], Timestamp.from_ms(7))
    (part,) = batch.parts
    assert (part.partition, part.offsets) == (0, range(2))
    assert part.timestamps is not None
    assert part.timestamps.tolist() == [7, 7]
    assert [part.values[at] for at in part.offsets] == [b"a", b"bcd"]
    assert (batch.topic, batch.topic_id, batch.partitions, batch.size) == ("mqtt://host/topic", "", 1, 4)
    assert (batch.start, batch.end, batch.beginning) == ({0: 0}, {0: 2}, {0: 0})
    assert batch.begun == 0.0
