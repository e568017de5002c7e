"""Pushes over HTTP: real sockets, and a gRPC server in place of ingest."""

import errno
import gzip
import http.client
import re
import socket
import time
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from odf_testing.recorded_cases import Side, plays
from odf_testing.recorded_transfers import body_of, lines_of, with_texts

from odf_common.adapters.local.key_files import NotOwned
from odf_common.adapters.local.process_files import Staging
from odf_common.codec.times import time_of
from odf_common.errors import Damaged, InvalidInput, StorageUnavailable, Unavailable
from odf_common.identity.dataset_refs import Name
from odf_common.ports.store import CatalogEntry, incarnation
from odf_sync.access import rate_limits
from odf_sync.access.rate_limits import Shares
from odf_sync.access.rules import Visibility
from odf_sync.http.endpoints import FAILED
from odf_sync.http.ingest_client import DISK_CODE, DISK_TEXT, REPEAT_HINT
from odf_sync.http.ingest_routes import ACCEPTED_TEXT

from .ingest_node import DATASET, MAX_BYTES, Here
from .ingest_node import here as here  # noqa: PLC0414 - a fixture
from .ingest_node import make_here as make_here  # noqa: PLC0414 - a fixture


@pytest.mark.parametrize("change", ["revoked", "replaced", "deleted", "nothing"])
def test_a_caller_who_loses_permission_while_the_body_arrives_has_pushed_nothing(
    make_here: Any, change: str
) -> None:
    here = make_here("off")
    here.directory.add_account(Name("ann"), None)
    token, _ = here.directory.create_token(Name("ann"), label="")

    def body() -> Iterator[bytes]:
        yield b"x"
        deadline = time.monotonic() + 10
        while not any(here.home.glob("staging/*")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if change == "revoked":
            here.directory.store.revoke(token.id)
        if change in {"replaced", "deleted"}:
            here.catalog.remove("orders")
        if change == "replaced":
            here.catalog.add(CatalogEntry(alias="orders", dataset_id=DATASET, creation="another"))
        yield b"y"

    status, answer = here.post(body(), Authorization=f"Bearer {token.text()}")
    if change == "nothing":
        assert (status, here.ingest.batches) == (200, [b"xy"])
    else:
        assert (status, answer["code"]) == (403, "PushForbidden")
        assert "the permission ended or the dataset was replaced" in answer["message"]
        assert here.ingest.batches == []
    assert here.staged() == []


def test_a_receipt_is_at_the_public_url(make_here: Any) -> None:
    here = make_here(public_url="https://data.example")
    receipt = f"https://data.example/orders/ingest/{'a' * 32}"
    _, accepted, headers = here.ask("POST", "/orders/ingest?wait=no", b"x")
    assert (accepted["url"], headers["Location"]) == (receipt, receipt)
    assert here.ask("POST", "/orders/ingest", b"x")[2]["Location"] == receipt
    assert here.ask("GET", f"/orders/ingest/{'a' * 32}")[1]["url"] == receipt


@plays(Side.SERVER)
def test_a_recorded_push_is_answered_as_recorded(make_here: Any, case: str) -> None:
    here = make_here("off", name="alice/cities.population", is_multi_tenant=True)
    here.directory.add_account(Name("alice"), None)
    token, _ = here.directory.create_token(Name("alice"), label="")
    here.ingest.outcome = {"state": "unchanged" if "no-change" in case else "committed"}

    request, response = with_texts(lines_of(case), {"Bearer TOKEN": f"Bearer {token.text()}"})
    connection = http.client.HTTPConnection(here.base.removeprefix("http://"), timeout=20)
    connection.request(request["method"], request["path"], body_of(request), request["headers"])
    answer = connection.getresponse()

    assert (answer.status, answer.read()) == (response["status"], body_of(response))
    assert answer.headers["Content-Length"] == response["headers"]["content-length"]
    connection.close()
    assert here.ingest.batches == [body_of(request)]
    (first,) = here.ingest.requests
    assert (first.source_name, first.input_format) == ("default", "text/csv")
    assert str(time_of(first.event_time)) == request["headers"]["odf-event-time"]


def test_a_node_with_accounts_refuses_a_push_without_a_body(make_here: Any) -> None:
    here = make_here("off", name="alice/cities", is_multi_tenant=True)
    here.directory.store.set_visibility(incarnation(DATASET, ""), Visibility.PUBLIC)
    status, plain, headers = here.ask("POST", "/alice/cities/ingest", b"x")
    assert (status, plain, headers["Content-Length"]) == (403, {}, "0")


def test_a_push_that_does_not_wait_is_accepted_with_a_receipt_that_can_be_queried(here: Here) -> None:
    status, plain, headers = here.ask(
        "POST", "/orders/ingest?sourceName=s&wait=no", b"id\n1\n", Content_Type="text/csv"
    )
    assert (status, plain["state"], plain["dataset"]) == (202, "accepted", "orders")
    assert plain["url"] == headers["Location"] == f"{here.base}/orders/ingest/{'a' * 32}"
    (request,) = here.ingest.requests
    assert (request.ref, request.source_name, request.input_format) == (str(DATASET), "s", "text/csv")
    assert request.is_key_generated
    assert here.ingest.batches == [b"id\n1\n"]
    assert here.staged() == []
    path = plain["url"].removeprefix(here.base)
    assert here.ask("GET", path)[1]["state"] == "accepted"
    assert here.ask("GET", f"{path}?wait=commit")[1]["state"] == "committed"


def test_headers_of_the_push_reach_ingest(here: Here) -> None:
    here.post(Idempotency_Key="k1", odf_event_time="2026-01-02T03:04:05Z")
    (request,) = here.ingest.requests
    assert (request.idempotency_key, request.is_key_generated) == ("k1", False)
    assert str(time_of(request.event_time)) == "2026-01-02T03:04:05Z"


@pytest.mark.parametrize(
    ("path", "headers", "status", "words"),
    [
        ("/none/ingest", {}, 404, "dataset none does not exist"),
        ("/../ingest", {}, 404, "does not exist"),
        ("/orders/ingest?wait=later", {}, 400, "parameter wait: expected commit or no, got 'later'"),
        ("/orders/ingest?source=s", {}, 400, "parameter source: unknown; did you mean sourceName?"),
        ("/orders/ingest?sourcename=s", {}, 400, "parameter sourcename: unknown; did you mean sourceName?"),
        ("/orders/ingest?waits=commit", {}, 400, "parameter waits: unknown; did you mean wait?"),
        ("/orders/ingest?uploadToken=s", {}, 400, "uploads are not supported"),
        ("/orders/ingest", {"odf_event_time": "yesterday"}, 400, "header odf-event-time"),
    ],
)
def test_an_unacceptable_push_is_refused_before_the_body_is_read(
    here: Here, path: str, headers: dict[str, str], status: int, words: str
) -> None:
    found, plain = here.post(path=path, **headers)
    assert found == status
    assert words in plain["message"]
    assert here.ingest.batches == []


def test_parameters_of_others_are_ignored(here: Here) -> None:
    assert here.post(path="/orders/ingest?utm_medium=web&sourceName=s")[0] == 200
    (request,) = here.ingest.requests
    assert request.source_name == "s"


def test_a_refusal_by_ingest_comes_before_the_body(here: Here) -> None:
    here.ingest.refusal = InvalidInput(text="no such source")
    assert here.post() == (400, {"message": "no such source", "code": "InvalidInput"})
    copy = here.ingest.refusal = NotOwned(text="orders is a copy")
    status, answer = here.post(path="/orders/ingest?wait=no")
    assert (status, answer["message"], answer["code"]) == (400, "orders is a copy", "NotOwned")
    (dataset,) = re.findall(r"did:odf:\w+", answer["advice"])
    assert answer["advice"] == copy.advice().replace("DATASET", dataset)
    assert not (here.home / "staging").exists()


def test_a_client_that_expects_100_continue_gets_it_only_once_the_body_is_needed(here: Here) -> None:
    host, port = here.base.removeprefix("http://").split(":")
    head = (
        f"POST /orders/ingest HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(head.encode())
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"hi")
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    here.ingest.refusal = InvalidInput(text="no")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(head.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 400")


def test_a_body_that_is_declared_as_too_large_is_refused_unread(here: Here) -> None:
    status, plain = here.post(b"x" * (MAX_BYTES + 1))
    assert status == 413
    assert str(MAX_BYTES) in plain["message"]
    assert "ODF_HTTP_INGEST_MAX_BYTES" in plain["advice"]


@pytest.mark.parametrize("headers", [{}, {"Content_Encoding": "gzip"}])
def test_a_body_that_turns_out_too_large_is_refused_and_leaves_nothing(
    here: Here, headers: dict[str, str]
) -> None:
    raw = b"\0" * (3 * MAX_BYTES)
    body = (
        gzip.compress(raw) if headers else (raw[start : start + 65536] for start in range(0, len(raw), 65536))
    )
    status, _ = here.post(body, **headers)
    assert status == 413
    assert here.ingest.batches == []
    assert here.staged() == []


def test_a_push_with_rejected_rows_is_answered_with_their_number_and_where_they_are(here: Here) -> None:
    here.ingest.outcome |= {
        "rejected": 2,
        "rejected_reason": "line 3: column id: 'x' is not a value of BIGINT",
    }
    status, answer, headers = here.ask("POST", "/orders/ingest", b"x")
    assert (status, answer["records"], answer["rejected"]) == (200, 1, 2)
    assert answer["rejectedReason"].startswith("line 3: ")
    assert answer["url"] == headers["Location"]
    assert "odf rejected list orders" in answer["advice"]


ROWS = b"id,amount\n" + b"".join(b"%d,%d\n" % (row, row * row) for row in range(200))
WHOLE = {
    "gzip": gzip.compress(ROWS, mtime=0),
    "x-gzip": gzip.compress(ROWS[:50], mtime=0) + gzip.compress(ROWS[50:], mtime=0),
    "deflate": zlib.compress(ROWS),
    "Deflate": zlib.compress(ROWS, wbits=-15),  # without the zlib header, as some clients send it
}


@pytest.mark.parametrize("encoding", WHOLE)
def test_a_compressed_body_is_decompressed_only_if_it_has_its_end(here: Here, encoding: str) -> None:
    whole = WHOLE[encoding]
    ends_of_members = [len(gzip.compress(ROWS[:50], mtime=0))] if encoding == "x-gzip" else []
    for cut in {0, 1, 2, 10, 11, len(whole) // 2, *range(len(whole) - 12, len(whole)), *ends_of_members}:
        status, answer = here.post(whole[:cut], Content_Encoding=encoding)
        if cut in ends_of_members:
            assert (status, here.ingest.batches.pop()) == (200, ROWS[:50])
        else:
            assert (status, answer["code"]) == (400, "BodyCutOff"), cut
            assert "nothing was accepted" in answer["message"]
    assert here.ingest.batches == []
    assert here.post(whole, Content_Encoding=encoding)[0] == 200
    assert here.post(iter([whole[:9], whole[9:]]), Content_Encoding=encoding)[0] == 200
    assert here.ingest.batches == [ROWS, ROWS]
    assert here.staged() == []


@pytest.mark.parametrize(
    ("encoding", "place"),
    # A raw stream has no checksum.
    [
        *((name, place) for name in ("gzip", "x-gzip", "deflate") for place in (0, 30, -1)),
        *((name, None) for name in WHOLE),
    ],
)
def test_a_compressed_body_with_a_wrong_byte_or_more_after_its_end_is_refused(
    here: Here, encoding: str, place: int | None
) -> None:
    body = bytearray(WHOLE[encoding])
    if place is None:
        body += b"more"
    else:
        body[place] ^= 0x55
    status, answer = here.post(bytes(body), Content_Encoding=encoding)
    assert (status, answer["code"]) == (400, "BodyCutOff")
    assert here.ingest.batches == []


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip", "utf-8"])
def test_a_content_encoding_that_is_not_read_is_refused_with_those_that_are(
    here: Here, encoding: str
) -> None:
    status, answer = here.post(b"x", Content_Encoding=encoding)
    assert (status, answer["code"]) == (415, "UnsupportedEncoding")
    assert encoding in answer["message"]
    assert "gzip" in answer["advice"]
    assert here.ingest.batches == []
    assert here.post(b"x", Content_Encoding="identity")[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 100\r\n\r\nhalf",
        b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\n",
        b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nhalf",
    ],
)
def test_a_truncated_body_is_never_accepted(here: Here, body: bytes) -> None:
    host, port = here.base.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(b"POST /orders/ingest HTTP/1.1\r\nHost: localhost\r\n" + body)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass
    assert here.post()[0] == 200
    assert here.ingest.batches == [b"x"]
    assert here.staged() == []


def test_a_body_that_stops_arriving_times_out(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "BODY_PAUSE_SECONDS", 0.2)
    host, port = here.base.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(b"POST /orders/ingest HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx")
        assert connection.recv(100).startswith(b"HTTP/1.1 408")
    assert here.staged() == []


def test_a_body_that_arrives_in_slow_single_bytes_times_out(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limits, "BODY_PAUSE_SECONDS", 0.4)
    host, port = here.base.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(b"POST /orders/ingest HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\n\r\n")
        connection.settimeout(0.1)
        answer = b""
        for _ in range(50):
            try:
                answer = connection.recv(100)
                break
            except TimeoutError:
                connection.sendall(b"x")
    assert answer.startswith(b"HTTP/1.1 408")
    assert here.staged() == []


def test_too_many_uploads_get_retry_after(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shares, "acquire", lambda *_: nullcontext(enter_result=False))
    status, _, headers = here.ask("POST", "/orders/ingest", b"x")
    assert (status, headers["Retry-After"]) == (503, "1")


def test_without_ingest_nothing_is_accepted(here: Here) -> None:
    here.server.stop(0)
    status, plain, headers = here.ask("POST", "/orders/ingest", b"x")
    assert (status, plain["code"], headers["Retry-After"]) == (503, "ServiceSilent", "1")


def test_an_ingest_with_an_unreachable_dependency_is_not_retried(here: Here) -> None:
    here.ingest.refusal = Unavailable(what="s3+http://minio.internal/secret-bucket")
    status, plain, _ = here.ask("POST", "/orders/ingest", b"x")
    assert status == 503
    assert "internal" not in str(plain)
    assert "the node cannot reach its store" in str(plain)


def test_an_ingest_that_has_a_damaged_file_cannot_use_it(here: Here) -> None:
    here.ingest.refusal = Damaged(file="secret-file", why="it is a folder")
    status, plain, _ = here.ask("POST", "/orders/ingest", b"x")
    assert (status, plain) == (500, {"message": FAILED, "code": "Damaged"})


@pytest.mark.parametrize(
    ("error", "answer", "plain"),
    [
        (StorageUnavailable, 507, {"message": DISK_TEXT, "advice": REPEAT_HINT}),
        (Damaged, 500, {"message": FAILED}),
    ],
)
def test_a_store_that_cannot_be_used_is_named_in_the_log_only(
    here: Here,
    monkeypatch: pytest.MonkeyPatch,
    error: type[StorageUnavailable | Damaged],
    answer: int,
    plain: dict[str, str],
) -> None:
    def hold(_: Staging) -> None:
        raise error(why="it does not answer", file="s3+http://minio.internal/secret-bucket")

    monkeypatch.setattr(Staging, "holding", hold)
    assert here.post() == (answer, {**plain, "code": error.__name__})


WAITING_FOR_DISK = {"state": "accepted", "code": DISK_CODE, "text": "datasets/secret cannot be used now"}


def test_a_push_that_waits_for_the_disk_is_answered_soon_and_its_repeat_gets_the_outcome(here: Here) -> None:
    here.ingest.outcome = WAITING_FOR_DISK
    status, plain, headers = here.ask("POST", "/orders/ingest?wait=commit", b"x", Idempotency_Key="k")
    assert (status, headers["Retry-After"]) == (507, "1")
    assert plain["message"] == f"{DISK_TEXT}; {ACCEPTED_TEXT}"
    here.ingest.outcome = {"state": "committed", "records": 1}
    assert here.post(path="/orders/ingest?wait=commit", Idempotency_Key="k")[1]["records"] == 1


def test_a_push_that_waits_for_a_part_of_the_node_is_answered_soon_with_the_part(here: Here) -> None:
    here.ingest.outcome = {"state": "accepted", "code": "PartSilent", "text": "kafka does not answer"}
    status, plain, headers = here.ask("POST", "/orders/ingest", b"x", Idempotency_Key="k")
    assert (status, headers["Retry-After"]) == (503, "1")
    assert plain == {
        "message": f"kafka does not answer; {ACCEPTED_TEXT}",
        "code": "PartSilent",
        "advice": REPEAT_HINT,
    }
    status, plain, _ = here.ask("POST", "/orders/ingest", b"x")
    assert (status, plain["error"]) == (202, {"message": "kafka does not answer", "code": "PartSilent"})


def test_a_push_without_a_key_is_not_asked_to_repeat_what_was_accepted(here: Here) -> None:
    here.ingest.outcome = WAITING_FOR_DISK
    status, plain, _ = here.ask("POST", "/orders/ingest?wait=commit", b"x")
    assert (status, plain["state"]) == (202, "accepted")
    assert plain["error"] == {"message": DISK_TEXT, "code": DISK_CODE}


def test_a_full_disk_of_ingest_is_answered_like_one_of_this_service(here: Here) -> None:
    here.ingest.refusal = StorageUnavailable(why="the disk is full", file="secret")
    status, plain, headers = here.ask("POST", "/orders/ingest", b"x")
    assert (status, headers["Retry-After"]) == (507, "1")
    assert plain == {"message": DISK_TEXT, "code": DISK_CODE, "advice": REPEAT_HINT}


def test_an_error_of_the_system_is_one_of_the_disk(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    def hold(_: Staging) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Staging, "holding", hold)
    assert here.post()[0] == 507


def test_an_unknown_receipt_does_not_exist(here: Here) -> None:
    status, plain, _ = here.ask("GET", f"/orders/ingest/{'b' * 32}")
    assert (status, plain["code"]) == (404, "NotFound")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://example.org"},
        {"Origin": "null"},
        {"Host": "attacker.example"},
        {"X-Forwarded-For": "192.0.2.1"},
        {"Forwarded": "for=192.0.2.1"},
    ],
)
def test_requests_that_may_be_remote_are_forbidden_unless_the_settings_allow_them(
    make_here: Any, headers: dict[str, str]
) -> None:
    here = make_here()
    status, plain = here.post(**headers)
    assert (status, plain["code"]) == (403, "PushForbidden")
    assert "ODF_HTTP_INGEST" in plain["advice"]
    assert here.ask("GET", f"/orders/ingest/{'a' * 32}", **headers)[0] == 403
    assert here.ingest.batches == []


@pytest.mark.parametrize("headers", [{"Origin": "http://localhost:3000"}, {"Host": "[::1]:80"}])
def test_programs_on_this_machine_may_push(here: Here, headers: dict[str, str]) -> None:
    assert here.post(**headers)[0] == 200


def test_pushes_can_be_allowed_from_anywhere_or_turned_off(make_here: Any) -> None:
    assert make_here("anywhere").post(X_Forwarded_For="192.0.2.1")[0] == 200


def test_pushes_can_be_turned_off(make_here: Any) -> None:
    assert make_here("off").post()[0] == 403
