import gzip
import hashlib
import os
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from odf_testing.webserver import Page, PageServer, serving_pages

from odf_common.adapters.networks import AddressForbidden, Networks
from odf_common.errors import InvalidInput, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import AddData, MergeStrategySnapshot, SetPollingSource
from odf_common.metadata.fetching import (
    CompressionFormat,
    FetchStepUrl,
    PrepStepDecompress,
    RequestHeader,
    SourceCachingForever,
)
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.clock import Backoff
from odf_ingest.poll.fetch import fetch_step
from odf_ingest.poll.fetch.fetch_step import Context, Limits
from odf_ingest.poll.poll_errors import (
    FileForbidden,
    NothingAtSource,
    SourceRefusedRequest,
    SourceUnreachable,
    TooLarge,
)
from odf_ingest.poll.poller import PollSummary

NOTHING = PollSummary()
MODIFIED = "Fri, 05 Jan 2024 10:00:00 GMT"


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_step, "FETCH_BACKOFF", Backoff(first=0, most=0))


@pytest.fixture
def bench(make_polled: Any, web: PageServer) -> Any:
    """Return a dataset that polls the page `/a`."""
    return make_polled(FetchStepUrl(url=f"{web.url}/a"))


def line(number: int) -> bytes:
    return f'{{"id":{number},"v":"a"}}\n'.encode()


def states(bench: Any) -> list[tuple[str, str]]:
    found = [one.new_source_state for one in bench.events() if isinstance(one, AddData)]
    return [(one.kind, one.value) for one in found if one is not None]


def test_content_is_committed_with_its_etag_and_unchanged_content_costs_one_request_and_no_block(
    bench: Any, poll: Any, web: PageServer
) -> None:
    web.pages["/a"] = Page(body=line(1), etag='"one"', modified=MODIFIED)
    assert poll(bench) == PollSummary(blocks=1, records=1)
    head = bench.state.head
    assert poll(bench) == NOTHING
    assert bench.state.head == head
    assert states(bench) == [("odf/etag", '"one"')]
    assert [one.get("if-none-match") for one in web.requests] == [None, '"one"']


def test_a_long_download_reports_how_far_it_is(
    make_polled: Any, poll: Any, web: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_step, "REPORT_SECONDS", -1.0)
    web.pages["/a"] = Page(body=b'{"id":1,"v":"%s"}\n' % bytes(3 << 19).replace(b"\0", b"x"))
    reports: list[str] = []
    poll(make_polled(FetchStepUrl(url=f"{web.url}/a")), report=reports.append)
    assert f"{web.url}/a: 1.5 of 1.5 MiB" in reports


def test_the_event_time_and_the_watermark_are_the_time_of_last_modification(
    bench: Any, poll: Any, web: PageServer
) -> None:
    web.pages["/a"] = Page(body=line(1), modified=MODIFIED)
    poll(bench)
    modified = Timestamp.parse("2024-01-05T10:00:00Z")
    assert bench.values("event_time") == [(modified.datetime(),)]
    assert bench.state.watermark == modified


def test_without_an_etag_last_modified_is_the_condition(bench: Any, poll: Any, web: PageServer) -> None:
    web.pages["/a"] = Page(body=line(1), modified=MODIFIED)
    poll(bench)
    assert poll(bench) == NOTHING
    assert states(bench) == [("odf/last-modified", "2024-01-05T10:00:00Z")]
    assert web.requests[1]["if-modified-since"] == MODIFIED


@pytest.mark.parametrize("validator", [{"etag": 'W/"x"'}, {"modified": MODIFIED}, {}])
def test_a_server_that_ignores_conditions_adds_nothing_twice(
    bench: Any, poll: Any, web: PageServer, validator: dict[str, Any]
) -> None:
    web.pages["/a"] = Page(body=line(1), obeys=False, **validator)
    assert poll(bench).records == 1
    assert poll(bench) == NOTHING
    web.pages["/a"].body = line(2)
    web.pages["/a"].etag, web.pages["/a"].modified = ('"y"', None) if validator else (None, None)
    assert poll(bench).records == 1
    assert bench.values("id") == [(1,), (2,)]


def test_a_new_snapshot_is_a_block_even_if_its_rows_are_the_same(
    make_polled: Any, poll: Any, web: PageServer
) -> None:
    web.pages["/a"] = Page(body=line(1) + line(2), etag='"1"')
    bench = make_polled(FetchStepUrl(url=f"{web.url}/a"), MergeStrategySnapshot(primary_key=("id",)))
    poll(bench)
    web.pages["/a"].etag = '"2"'
    assert poll(bench) == PollSummary(blocks=1, records=0)
    web.pages["/a"] = Page(body=line(2), etag='"3"')
    assert poll(bench) == PollSummary(blocks=1, records=1)
    assert bench.values("op", "id")[-1] == (1, 1)


def test_with_cache_forever_a_url_is_requested_once(make_polled: Any, poll: Any, web: PageServer) -> None:
    web.pages["/a"] = Page(body=line(1), etag='"1"')
    bench = make_polled(FetchStepUrl(url=f"{web.url}/a", cache=SourceCachingForever()))
    poll(bench)
    web.pages["/a"] = Page(body=line(2), etag='"2"')
    assert poll(bench) == NOTHING
    assert len(web.requests) == 1


@pytest.mark.parametrize("is_same", [True, False])
def test_validators_of_another_url_are_no_condition(
    bench: Any, poll: Any, web: PageServer, is_same: bool
) -> None:
    web.pages["/a"] = web.pages["/b"] = Page(body=line(1), etag='"1"')
    poll(bench)
    old = bench.state.polling_source
    step = FetchStepUrl(
        url=f"{web.url}/{'a' if is_same else 'b'}", headers=(RequestHeader(name="X", value="1"),)
    )
    bench.propose(SetPollingSource(fetch=step, read=old.read, merge=old.merge))
    assert poll(bench).records == (0 if is_same else 1)
    assert ("if-none-match" in web.requests[-1]) is is_same


def test_a_source_that_moved_and_brings_the_same_is_up_to_date(
    make_polled: Any, poll: Any, web: PageServer
) -> None:
    web.pages["/old"] = web.pages["/new"] = Page(body=line(1))
    bench = make_polled(FetchStepUrl(url=f"{web.url}/old"), MergeStrategySnapshot(primary_key=("id",)))
    poll(bench)
    bench.propose(replace(bench.state.polling_source, fetch=FetchStepUrl(url=f"{web.url}/new")))
    assert [poll(bench), poll(bench)] == [NOTHING, NOTHING]
    web.pages["/new"] = Page(body=line(1) + line(2))
    assert poll(bench).records == 1


def test_a_redirect_is_followed_and_own_headers_stay_at_their_origin(
    make_polled: Any, poll: Any, web: PageServer
) -> None:
    with serving_pages() as other:
        other.pages["/data"] = Page(body=line(1), etag='"1"')
        web.pages["/here"] = Page(status=302, headers={"Location": "/there"})
        web.pages["/there"] = Page(status=307, headers={"Location": f"{other.url}/data"})
        url = web.url.replace("http://", "http://user:hush@") + "/here"
        bench = make_polled(FetchStepUrl(url=url, headers=(RequestHeader(name="X-Key", value="k"),)))
        assert poll(bench).records == 1
        assert [(one["path"], one.get("x-key"), "authorization" in one) for one in web.requests] == [
            ("/here", "k", True),
            ("/there", "k", True),
        ]
        (asked,) = other.requests
    assert "x-key" not in asked
    assert "authorization" not in asked


def test_endless_redirects_are_refused(bench: Any, poll: Any, web: PageServer) -> None:
    web.pages["/a"] = Page(status=301, headers={"Location": "/a"})
    with pytest.raises(SourceRefusedRequest, match="redirects more than 10 times"):
        poll(bench)


def test_a_body_that_breaks_off_is_requested_again_and_never_read(
    bench: Any, poll: Any, web: PageServer
) -> None:
    web.pages["/a"] = Page(body=line(1) + line(2), etag='"1"', breaks=[len(line(1))], fails=[503])
    assert poll(bench).records == 2
    web.pages["/a"] = Page(body=line(3) + line(4), etag='"2"', breaks=[len(line(1))] * 3)
    head = bench.state.head
    with pytest.raises(SourceUnreachable, match="the connection was interrupted"):
        poll(bench)
    assert bench.state.head == head
    assert poll(bench).records == 2


def test_a_compressed_file_is_unpacked_once_though_its_server_calls_that_an_encoding(
    make_polled: Any, poll: Any, web: PageServer
) -> None:
    web.pages["/a.gz"] = Page(body=gzip.compress(line(1)), headers={"Content-Encoding": "gzip"})
    step = PrepStepDecompress(format=CompressionFormat.Gzip)
    bench = make_polled(FetchStepUrl(url=f"{web.url}/a.gz"), prepare=(step,))
    assert poll(bench).records == 1


def test_a_slow_body_arrives(bench: Any, poll: Any, web: PageServer) -> None:
    web.pages["/a"] = Page(body=b"".join(line(n) for n in range(300)), pause=0.02)
    assert poll(bench).records == 300


@pytest.mark.parametrize(
    ("status", "error", "requests"),
    [
        (404, NothingAtSource, 1),
        (403, SourceRefusedRequest, 1),
        (500, SourceUnreachable, 3),
        (429, SourceUnreachable, 3),
        (304, SourceRefusedRequest, 1),
        (204, SourceRefusedRequest, 1),
    ],
)
def test_other_statuses_are_errors_without_the_secrets_of_the_url(  # noqa: PLR0917
    make_polled: Any, poll: Any, web: PageServer, status: int, error: type[Exception], requests: int
) -> None:
    web.pages["/a"] = Page(status=status)
    bench = make_polled(FetchStepUrl(url=web.url.replace("//", "//me:hush@") + "/a?token=hush#hush"))
    with pytest.raises(error, match=rf"{web.url}/a ") as caught:
        poll(bench)
    assert "hush" not in str(caught.value)
    assert len(web.requests) == requests


def test_a_server_that_is_down_is_unavailable(make_polled: Any, poll: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    bench = make_polled(FetchStepUrl(url=f"http://127.0.0.1:{port}/a"))
    with pytest.raises(Unavailable, match="Connection refused"):
        poll(bench)


@pytest.mark.parametrize("length", [True, False])
def test_more_than_the_limit_is_refused(bench: Any, poll: Any, web: PageServer, length: bool) -> None:
    body = line(1) * 100
    headers = {"Content-Length": str(len(body))} if length else {"Content-Length": "x"}
    web.pages["/a"] = Page(body=body, headers=headers)
    with pytest.raises(TooLarge, match=f"{web.url}/a has more than 100 bytes"):
        poll(bench, size=100)


def test_a_local_file_is_read_again_when_it_changes(make_polled: Any, poll: Any, tmp_path: Path) -> None:
    file = tmp_path / "a b.json"
    file.write_bytes(line(1))
    os.utime(file, ns=(0, 1_700_000_000_123_456_789))
    bench = make_polled(FetchStepUrl(url=file.as_uri()))
    assert poll(bench).records == 1
    assert poll(bench) == NOTHING
    assert states(bench) == [("odf/last-modified", "2023-11-14T22:13:20.123456789Z")]
    file.write_bytes(line(2))
    assert poll(bench).records == 1


def test_an_unreadable_file_is_refused(make_polled: Any, poll: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "k").write_text("hush")
    (tmp_path / "link").symlink_to(tmp_path / "keys" / "k")
    for name, error in {
        "absent": NothingAtSource,
        "pipe": NothingAtSource,
        "keys/k": FileForbidden,
        "link": FileForbidden,
    }.items():
        bench = make_polled(FetchStepUrl(url=f"file://{tmp_path}/{name}"))
        with pytest.raises(error):
            poll(bench, secrets=tmp_path / "keys")
    with pytest.raises(InvalidInput, match="a file URL has no host"):
        poll(make_polled(FetchStepUrl(url="file://elsewhere/x")))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "0x7f.1", "2130706433"])
def test_private_addresses_are_refused_unless_allowed(make_polled: Any, poll: Any, host: str) -> None:
    bench = make_polled(FetchStepUrl(url=f"http://{host}:1/a"))
    with pytest.raises(AddressForbidden, match="is not a public address") as caught:
        poll(bench, networks=Networks())
    assert "ODF_FETCH_NETWORKS" in caught.value.advice()


def test_a_redirect_to_a_private_address_is_refused(bench: Any, poll: Any, web: PageServer) -> None:
    web.pages["/a"] = Page(status=302, headers={"Location": "http://169.254.169.254/latest/meta-data"})
    with pytest.raises(AddressForbidden, match=r"169\.254\.169\.254"):
        poll(bench)


def test_a_redirect_to_a_file_is_refused(make_polled: Any, poll: Any, web: PageServer) -> None:
    web.pages["/a"] = Page(status=302, headers={"Location": "file:///etc/passwd"})
    with pytest.raises(SourceRefusedRequest, match="/a redirects elsewhere: expected http or https"):
        poll(make_polled(FetchStepUrl(url=f"{web.url}/a")))


def test_the_address_that_is_connected_to_is_the_one_that_was_checked(
    make_polled: Any, poll: Any, web: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host name whose address changes between the check and the connection."""
    port = int(web.url.rpartition(":")[2])
    web.pages["/a"] = Page(body=line(1))
    answers = [[(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers.pop())
    assert poll(make_polled(FetchStepUrl(url=f"http://rebinding.test:{port}/a"))).records == 1
    assert answers == []


@pytest.mark.parametrize(
    ("address", "is_allowed"),
    [
        ("93.184.216.34", True),
        ("10.0.0.1", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),  # noqa: S104 - refused
        ("224.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("::ffff:93.184.216.34", True),
        ("64:ff9b::a00:1", False),
        ("2002:0a00:0001::", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("2606:2800:220:1::1", True),
        ("10.1.2.3", True),
    ],
)
def test_which_addresses_are_allowed(address: str, is_allowed: bool) -> None:
    networks = Networks.parse(("10.1.0.0/16",))
    if is_allowed:
        networks.require("host", address)
    else:
        with pytest.raises(AddressForbidden):
            networks.require("host", address)


def test_a_body_is_stored_unless_it_is_too_large_or_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(size=6)
    context = cast("Context", SimpleNamespace(limits=limits, require_wanted=lambda: None, report=print))
    stored = tmp_path / "stored"
    found = fetch_step.Body(label="x", chunks=[b"one", b"two"]).store(stored, context)
    assert found == (Multihash.sha3(hashlib.sha3_256(b"onetwo").digest()), 6)
    assert stored.read_bytes() == b"onetwo"
    for announced in (0, 7):
        with pytest.raises(TooLarge):
            fetch_step.Body(label="x", chunks=[b"one", b"two", b"!"], total=announced).store(stored, context)
    monkeypatch.setattr(fetch_step, "DOWNLOAD_SECONDS", -1.0)
    with pytest.raises(SourceUnreachable, match="slower than"):
        fetch_step.Body(label="x", chunks=[b"one"]).store(stored, context)
