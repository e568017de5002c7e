"""Spark listens on a port of its own, which refuses strangers without a traceback for each."""

import socket
import threading

import pytest
from pyspark.accumulators import AccumulatorTCPServer, UpdateRequestHandler
from structlog.testing import capture_logs

from odf_engine_spark.spark import session


def test_a_connection_that_is_refused_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(AccumulatorTCPServer, "handle_error", session._log_refusal)
    server = AccumulatorTCPServer(("127.0.0.1", 0), UpdateRequestHandler, "a-token")
    port = int(server.server_address[1])
    serving = threading.Thread(target=server.serve_forever)
    with capture_logs() as entries:
        serving.start()
        for sent in (b"\xff" * 100, b"other-token", b""):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                assert client.recv(1) == b""
        server.shutdown()
        serving.join()
        server.server_close()
    assert [entry["why"] for entry in entries] == ["UnicodeDecodeError", "ValueError", "ValueError"]
    assert capfd.readouterr().err == ""
