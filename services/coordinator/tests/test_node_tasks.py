"""Tasks of flows as the node does them, over a coordinator in memory; other services do not answer."""

from typing import Any

import pytest
from odf_testing.coordinator import Coordinator

from odf_common.errors import OdfError, Unavailable
from odf_common.resources import specs
from odf_common.resources.failures import DependencyMissing, FailureClass, failure_class
from odf_common.resources.references import SOURCE_FIELD, Reference
from odf_coordinator.resources.flows.node_tasks import NodeTasks, Peer, TaskImpossible
from odf_coordinator.resources.flows.task_port import TaskCancelled, TaskRequest

SOURCE = {"headers": {"name": "rates"}, "spec": {}}
INGEST = specs.TaskIngest(source=Reference.parse("rates", SOURCE_FIELD))


def node_tasks(node: Coordinator, *, is_multi_tenant: bool = False) -> NodeTasks:
    peer = Peer(name="sync", address=None)
    return NodeTasks(
        puller=node.puller,
        poll=node.ingest.poll,
        verifier=peer,
        sync=peer,
        is_multi_tenant=is_multi_tenant,
    )


def a_request(node: Coordinator, name: str, spec: Any, **fields: Any) -> TaskRequest:
    document = {
        "headers": {"name": name, "account": {"name": "alice"}},
        "spec": {"did": str(node.find(name).id)},
    }
    return TaskRequest(task="f.1.0", spec=spec, target=document, flow="f", run=1, **fields)


def test_an_ingest_polls_the_source_that_the_task_names(pair: Coordinator) -> None:
    remark = node_tasks(pair).perform(a_request(pair, "cities", INGEST, references={"source": SOURCE}))
    assert remark == "0 records from rates"
    assert pair.ingest.polled == [pair.find("cities").id]


def test_an_ingest_whose_source_is_gone_waits_for_it(pair: Coordinator) -> None:
    with pytest.raises(DependencyMissing):
        node_tasks(pair).perform(a_request(pair, "cities", INGEST))


def test_a_cancelled_ingest_ends_at_the_next_stage(pair: Coordinator) -> None:
    request = a_request(pair, "cities", INGEST, references={"source": SOURCE})
    request.cancellation.request()
    with pytest.raises(TaskCancelled):
        node_tasks(pair).perform(request)


def test_a_root_cannot_be_transformed(pair: Coordinator) -> None:
    with pytest.raises(TaskImpossible, match="cities is a root"):
        node_tasks(pair).perform(a_request(pair, "cities", specs.TaskTransform()))


@pytest.mark.parametrize("spec", [specs.TaskVerify(), specs.TaskPush(), specs.TaskPull()])
def test_a_service_that_does_not_answer_is_a_reason_to_repeat(pair: Coordinator, spec: object) -> None:
    with pytest.raises(Unavailable) as failed:
        node_tasks(pair).perform(a_request(pair, "cities", spec))
    assert failure_class(failed.value) is FailureClass.TRANSIENT


@pytest.mark.parametrize("spec", [specs.TaskPush(), specs.TaskPull(source="file:///etc")])
def test_copies_are_for_the_account_of_the_node_where_there_are_several(
    pair: Coordinator, spec: object
) -> None:
    with pytest.raises(OdfError, match="on a node of several accounts"):
        node_tasks(pair, is_multi_tenant=True).perform(a_request(pair, "cities", spec))
