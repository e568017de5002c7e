"""Requests about resources over gRPC: repetitions, and batches without manifests."""

from typing import Any, cast

import pytest
from odf_testing.resource_server import resources_in_memory

from odf_common.errors import InvalidInput
from odf_common.proto.odf.node.v1 import resources_pb2 as pb
from odf_common.resources.resource_manifests import EmptyBatch
from odf_coordinator.resources.requests import ANSWER_KEPT_MS, RequestKeyReused, forget_old_keys
from odf_coordinator.resources.resource_servicer import ResourceServicer

SET = b"{$schema: VariableSet, headers: {name: env}, spec: {variables: {a: '%d'}}}"
CONTEXT = cast("Any", None)
BOB = pb.ResourceSubject(did="did:odf:fed01" + "0" * 64, name="Bob")


@pytest.fixture
def servicer() -> ResourceServicer:
    return ResourceServicer(resources_in_memory(), CONTEXT, CONTEXT, CONTEXT)


def apply(servicer: ResourceServicer, text: bytes, key: str = "", **options: Any) -> bytes:
    files = [pb.ManifestFile(text=text)]
    request = pb.ApplyResourcesRequest(files=files, idempotency_key=key, **options)
    reply = servicer.ApplyResources(request, CONTEXT)
    assert not reply.problems
    return reply.results


def test_a_repeated_request_has_the_former_answer(servicer: ResourceServicer) -> None:
    first = apply(servicer, SET % 1, "k")
    assert b'"created"' in first
    assert apply(servicer, SET % 1, "k") == first
    assert b'"unchanged"' in apply(servicer, SET % 1)
    assert b'"updated"' in apply(servicer, SET % 2, "l")
    assert apply(servicer, SET % 1, "k") == first  # and nothing is changed back
    assert b'"unchanged"' in apply(servicer, SET % 2)


def test_the_key_of_another_request_is_refused(servicer: ResourceServicer) -> None:
    apply(servicer, SET % 1, "k")
    with pytest.raises(RequestKeyReused):
        apply(servicer, SET % 2, "k")
    with pytest.raises(RequestKeyReused):
        apply(servicer, SET % 1, "k", rebind=True)


def test_keys_of_other_accounts_and_dry_runs_are_others(servicer: ResourceServicer) -> None:
    apply(servicer, SET % 1, "k", dry_run=True)
    assert b'"created"' in apply(servicer, SET % 1, "k")
    assert b'"created"' in apply(servicer, SET % 2, "k", subject=BOB)


def test_an_answer_is_kept_for_a_day(servicer: ResourceServicer) -> None:
    apply(servicer, SET % 1, "k")
    resources = servicer._resources
    with resources.store.transaction() as transaction:
        forget_old_keys(transaction, resources.clock.now().ms)
    assert b'"created"' in apply(servicer, SET % 1, "k")
    with resources.store.transaction() as transaction:
        forget_old_keys(transaction, resources.clock.now().ms + ANSWER_KEPT_MS)
    assert b'"unchanged"' in apply(servicer, SET % 1, "k")


@pytest.mark.parametrize("key", ["k" * 201, "k\n", "ü"])
def test_a_key_is_short_and_printable(servicer: ResourceServicer, key: str) -> None:
    with pytest.raises(InvalidInput, match="at most 200 printable ASCII characters"):
        apply(servicer, SET % 1, key)


@pytest.mark.parametrize("text", [b"", b"# nothing\n", b"[]"])
def test_a_batch_without_manifests_is_refused(servicer: ResourceServicer, text: bytes) -> None:
    with pytest.raises(EmptyBatch, match="there is no manifest"):
        apply(servicer, text)
    with pytest.raises(EmptyBatch):
        servicer.AddResourceTypes(pb.AddResourceTypesRequest(files=[pb.ManifestFile(text=text)]), CONTEXT)
