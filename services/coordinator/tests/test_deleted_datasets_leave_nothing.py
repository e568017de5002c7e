import gc
from typing import cast

import grpc
from odf_testing.coordinator import Coordinator
from structlog.testing import capture_logs

from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.bus import NOTIFICATIONS
from odf_common.proto.odf.node.v1.coordinator_pb2 import DescribeRequest, ListRequest
from odf_coordinator.api.grpc_servicer import Servicer
from odf_coordinator.transforms.runner import LATE, count_late

PAIRS = 30
CONTEXT = cast("grpc.ServicerContext", None)  # neither `List` nor `Describe` looks at it


def test_datasets_that_were_deleted_are_in_no_map(node: Coordinator, root: str, derivative: str) -> None:
    node.committer.listen(node.publisher.announce)
    servicer = Servicer(node.parts)
    with capture_logs():
        for number in range(PAIRS):
            cities, copy = f"cities.{number}", f"copy.{number}"
            named = derivative.replace("name: cities.copy", f"name: {copy}").replace("Cities", cities)
            node.add(root.replace("name: cities", f"name: {cities}"), named)
            node.push(cities, "Oslo")
            count_late(node.blobs, node.find(copy), 1)
        node.work()
        ids = {known.id for known in node.datasets.all()}
        assert len(ids) == 2 * PAIRS
        assert len(servicer.List(ListRequest(), CONTEXT).datasets) == 2 * PAIRS
        for dataset in ids:
            servicer.Describe(DescribeRequest(ref=str(dataset)), CONTEXT)
        assert len(held(ids)) > 5

        for number in range(PAIRS):
            node.names.delete(f"copy.{number}")
            node.names.delete(f"cities.{number}")
        for topic, message in node.bus.sent:
            if topic == NOTIFICATIONS:
                list(node.notifications.handle(message))
        node.work()

    assert held(ids) == []
    assert set(node.topics.names) == set()
    assert len(node.committer.locks) == 0
    counted = {sample.labels["dataset"] for metric in LATE.collect() for sample in metric.samples}
    assert counted.isdisjoint(
        f"copy.{number}" for number in range(PAIRS)
    )  # tests before this one may have counted


def held(ids: set[DatasetId]) -> list[object]:
    """Return the mappings and sets of this process that have one of these datasets among their keys."""
    gc.collect()
    found = []
    for one in gc.get_objects():
        if isinstance(one, dict | set | frozenset) and one is not ids:
            try:
                if any(type(key) is DatasetId and key in ids for key in tuple(one)):
                    found.append(one)
            except RuntimeError:  # it changes meanwhile, in another thread
                continue
    return [type(one).__name__ + str(len(cast("set[object]", one))) for one in found]
