"""A merge patch of a resource whose status changes meanwhile."""

import json
from typing import Any, cast

import pytest

from odf_common.proto.odf.node.v1 import resources_pb2 as pb
from odf_sync.http.resource_client import ResourceProblem
from odf_sync.http.resource_documents import PATCH_ATTEMPTS, patch_resource


class MovingResource:
    """A resource whose version differs from the one that was read for some attempts."""

    def __init__(self, moves: int) -> None:
        self.moves, self.applied = moves, list[Any]()

    def get(self, _: pb.GetResourceRequest) -> pb.ResourceReply:
        return pb.ResourceReply(input=b'{"spec": {"a": 1, "b": 2}}', etag='"1.2"')

    def apply(self, request: pb.ApplyResourcesRequest) -> list[dict[str, Any]]:
        assert request.etag == '"1.2"'
        self.moves -= 1
        if self.moves >= 0:
            raise ResourceProblem(status=412, error="PreconditionFailed", text="moved")
        self.applied.append(json.loads(request.files[0].text))
        return [{"outcome": "updated"}]


def patch(resource: MovingResource, etag: str = "") -> dict[str, Any]:
    return patch_resource(cast("Any", resource), pb.GetResourceRequest(), {"spec": {"b": None}}, etag)


def test_a_patch_is_repeated_after_a_change_of_the_status() -> None:
    resource = MovingResource(PATCH_ATTEMPTS - 1)
    assert patch(resource) == {"outcome": "updated"}
    assert resource.applied == [{"spec": {"a": 1}}]


@pytest.mark.parametrize(("moves", "etag"), [(PATCH_ATTEMPTS, ""), (1, '"1.2"')])
def test_a_patch_of_an_expected_version_or_without_end_is_refused(moves: int, etag: str) -> None:
    resource = MovingResource(moves)
    with pytest.raises(ResourceProblem):
        patch(resource, etag)
    assert resource.applied == []
