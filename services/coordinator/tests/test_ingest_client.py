import socket

import pytest
from odf_testing.actors import VirtualTime
from odf_testing.builders import a_dataset

from odf_common.adapters.grpc.client import ServiceUnreachable
from odf_coordinator.operations.ingest_client import IngestClient


def test_an_ingest_that_does_not_come_is_waited_for_once_and_not_for_each_dataset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = VirtualTime(monkeypatch)
    began = clock.now
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        client = IngestClient("127.0.0.1:{1}".format(*nobody.getsockname()), patience=0.2)
        ends = []
        for _ in range(2):
            with pytest.raises(ServiceUnreachable, match="ingest cannot be reached: no server answers"):
                list(client.drain(a_dataset()))
            ends.append(clock.now)
    assert ends[0] >= began + 0.2
    assert ends[1] == ends[0]
