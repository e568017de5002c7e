"""Pushes over HTTP that wait for their commit."""

import http.client
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from odf_common.adapters.grpc.calls import Busy
from odf_common.errors import Unavailable
from odf_sync.http import ingest_routes
from odf_sync.http.ingest_client import IngestClient, PushRefused

from .ingest_node import Here
from .ingest_node import here as here  # noqa: PLC0414 - a fixture
from .ingest_node import make_here as make_here  # noqa: PLC0414 - a fixture

STOPPED = threading.Event()
STOPPED.set()
WAITING = ("", "?wait=commit")  # queries of such pushes


def test_a_push_is_answered_without_a_body_when_it_is_committed(here: Here) -> None:
    status, plain, headers = here.ask("POST", "/orders/ingest", b"x")
    assert (status, plain, headers["Content-Length"]) == (200, {}, "0")
    receipt = here.ask("GET", headers["Location"].removeprefix(here.base))[1]
    assert (receipt["state"], receipt["records"]) == ("committed", 1)


def test_the_receipt_of_a_committed_push_can_be_requested_as_the_answer(here: Here) -> None:
    status, plain, headers = here.ask("POST", "/orders/ingest?wait=commit", b"x")
    assert (status, plain["state"], plain["records"], plain["head"]) == (200, "committed", 1, "h")
    assert headers["Location"] == plain["url"]


@pytest.mark.parametrize("query", WAITING)
def test_a_push_is_answered_as_accepted_if_it_is_not_committed_in_time(
    here: Here, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    monkeypatch.setattr(ingest_routes, "WAIT_SECONDS", 0.0)
    status, plain = here.post(path=f"/orders/ingest{query}")
    assert (status, plain["state"]) == (202, "accepted")


@pytest.mark.parametrize("query", WAITING)
def test_a_push_is_answered_as_accepted_if_ingest_stops_before_the_commit(here: Here, query: str) -> None:
    here.ingest.failures = [Unavailable(what="the store")]
    status, plain = here.post(path=f"/orders/ingest{query}")
    assert (status, plain["state"]) == (202, "accepted")


@pytest.mark.parametrize("query", WAITING)
@pytest.mark.parametrize(
    ("code", "status"),
    [("InvalidInput", 400), ("KeyReused", 409), ("UnsupportedMediaType", 415), ("Bug", 400)],
)
def test_a_refusal_of_a_push_that_waits_is_an_error_with_advice(
    here: Here, code: str, status: int, query: str
) -> None:
    here.ingest.outcome = {"state": "refused", "code": code, "text": "line 2: bad", "advice": "fix it"}
    found, plain = here.post(path=f"/orders/ingest{query}")
    assert found == status
    assert plain == {"message": "line 2: bad", "code": code, "advice": "fix it"}
    assert here.ask("GET", f"/orders/ingest/{'a' * 32}?wait=commit")[1]["error"] == plain


def test_a_push_continues_to_wait_if_too_many_others_do(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_routes, "PUSH_RETRY_AFTER_SECONDS", 0.0)
    here.ingest.failures = [Busy(what="Show of orders")] * 2
    assert here.post()[0] == 200
    assert len(here.ingest.waits) == 3


def test_pushes_that_wait_keep_no_other_from_being_accepted(
    make_here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_routes, "PUSH_THREADS", 1)
    monkeypatch.setattr(ingest_routes, "WAIT_STEP_SECONDS", 30.0)  # longer than the client waits
    here = make_here()
    here.ingest.may_settle.clear()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(here.post)
        try:
            eventually(lambda: bool(here.ingest.waits))
            assert here.post(path="/orders/ingest?wait=no")[0] == 202
            assert not waiting.done()
        finally:
            here.ingest.may_settle.set()
        assert waiting.result()[0] == 200


def test_a_push_that_waits_gets_its_receipt_when_the_service_stops(
    make_here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_routes, "WAIT_STEP_SECONDS", 0.05)
    here = make_here()
    here.ingest.may_settle.clear()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(here.post)
        eventually(lambda: len(here.ingest.waits) > 1)
        here.client.end_waits(STOPPED)
        status, plain = waiting.result(timeout=10)
    assert (status, plain["state"]) == (202, "accepted")


def test_no_call_of_ingest_is_repeated_once_the_service_stops() -> None:
    ingest = IngestClient("127.0.0.1:1", timeout=60.0)
    ingest.end_waits(STOPPED)
    begin = time.monotonic()
    with pytest.raises(PushRefused):
        ingest.show("did:odf:x", "a" * 32)
    assert time.monotonic() - begin < 30


def test_a_push_whose_client_has_gone_stops_waiting(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_routes, "WAIT_STEP_SECONDS", 0.05)
    here.ingest.may_settle.clear()
    connection = http.client.HTTPConnection(here.base.removeprefix("http://"), timeout=20)
    connection.request("POST", "/orders/ingest", b"x")
    eventually(lambda: len(here.ingest.waits) > 1)
    connection.close()

    def has_stopped() -> bool:
        before = len(here.ingest.waits)
        time.sleep(0.5)
        return len(here.ingest.waits) == before

    eventually(has_stopped)


def eventually(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
