"""Which calls have an entry in the audit log, and its content, without a server."""

from dataclasses import replace
from typing import Final

import grpc
import pytest
from odf_testing.builders import a_dataset
from odf_testing.bus import MemoryBus

from odf_common.adapters.grpc.calls import Call
from odf_common.codec.envelopes import Envelope, decode
from odf_common.ports.bus import AUDIT
from odf_common.service.audit import MAX_NAME_CHARACTERS, Audit

DATASET: Final = str(a_dataset())
CHANGE: Final = Call(method="/odf.node.v1.Coordinator/Delete", dataset=DATASET)


def noted(*calls: Call) -> list[Envelope]:
    audit, bus = Audit(), MemoryBus()
    for call in calls:
        audit.note_call(call)
    audit.finish(bus)
    return [decode(*message) for message in bus.topics[AUDIT]]


def test_calls_of_the_engine_are_parts_of_others() -> None:
    assert noted(replace(CHANGE, method="/odf.engine.Engine/ExecuteTransform")) == []


def test_a_method_that_is_not_known_may_have_changed_something() -> None:
    assert len(noted(replace(CHANGE, method="/odf.node.v1.Later/Delete"))) == 1


@pytest.mark.parametrize("status", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED])
def test_a_change_without_success_is_not_allowed_and_belongs_to_no_dataset(status: grpc.StatusCode) -> None:
    done, failed = noted(CHANGE, replace(CHANGE, status=status))
    assert (done.dataset_id, failed.dataset_id) == (DATASET, "")
    assert (done.access_decision.is_allowed, failed.access_decision.is_allowed) == (True, False)
    assert failed.access_decision.dataset == DATASET
    assert done.may_ignore


def test_strings_of_a_client_are_truncated_and_made_valid() -> None:
    sent = "\ud800" + "x" * 1000
    call = replace(CHANGE, dataset=sent, subject=sent, certificate_name=sent, address=sent, user_agent=sent)
    (entry,) = (message.access_decision for message in noted(call))
    found = {entry.dataset, entry.subject, entry.account, entry.address, entry.user_agent}
    assert found == {"?" + "x" * (MAX_NAME_CHARACTERS - 1)}
