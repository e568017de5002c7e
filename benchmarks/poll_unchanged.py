"""A thousand URLs whose content has not changed, polled over a node, compared with the same requests alone.

Each URL is the source of a dataset. The server is a separate process on this machine and responds 304, so the network
costs nothing. The peer is a loop of urllib3 that sends the same conditional requests, on a connection each, as the
node does, and reads no position, locks nothing and reports to no caller; with one connection for all it shows the
cost of connecting. Each round measures all, beginning with another one.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from statistics import median
from typing import Final

import urllib3
from node_under_test import BenchedNode
from rows import Row, Target, held_against

from odf_cli import clients
from odf_common.proto.odf.node.v1.coordinator_pb2 import AddRequest, PullRequest

NAME: Final = "unchanged"
COUNT: Final = 1000
AT_ONCE: Final = 250  # manifests per call
ROUNDS: Final = 3
ETAG: Final = '"1"'
BODY: Final = b'{"id":1}\n'
FIFTH: Final = Target(judged="ratio", sense="≥", bound=0.2)
MANIFEST: Final = """\
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {{kind: Url, url: "{url}"}}
      read: {{kind: NdJson, schema: [id BIGINT]}}
      merge: {{kind: Append}}
"""


def run(node: BenchedNode) -> list[Row]:
    """Return how many unchanged URLs are polled per second."""
    with _server() as url:
        urls = {f"{NAME}.{number:04}": f"{url}/{number}" for number in range(COUNT)}
        _fill(node, urls)
        node.settle()
        works: dict[str, Callable[[], float]] = {
            "ours": lambda: _pull(node, "up-to-date"),
            "alone": lambda: _request(urls, is_kept=False),
            "kept": lambda: _request(urls, is_kept=True),
        }
        rounds = [_turn(number, works) for number in range(ROUNDS)]
    rates = {name: COUNT / median(round_[name] for round_ in rounds) for name in works}
    return [
        held_against(
            f"odf pull, {COUNT} unchanged URLs",
            rates["ours"],
            "URLs/s",
            peer=("urllib3, a connection each", rates["alone"]),
            target=FIFTH,
        ),
        held_against(
            f"{COUNT} conditional requests, a connection each",
            rates["alone"],
            "URLs/s",
            peer=("urllib3, one connection", rates["kept"]),
        ),
    ]


def _turn(number: int, works: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """Measure each once, beginning with another one each turn."""
    names = list(works)
    first = number % len(names)
    return {name: works[name]() for name in (*names[first:], *names[:first])}


def _fill(node: BenchedNode, urls: Mapping[str, str]) -> None:
    """Add a dataset for each URL, and poll it once."""
    names = list(urls)
    with clients.coordinator(node.node) as coordinator:
        for first in range(0, COUNT, AT_ONCE):
            request = AddRequest()
            for name in names[first : first + AT_ONCE]:
                request.manifests.add(name=name, text=MANIFEST.format(name=name, url=urls[name]).encode())
            coordinator.Add(request, timeout=clients.STREAM_TIMEOUT_SECONDS)
    _pull(node, "updated")


def _pull(node: BenchedNode, state: str) -> float:
    """Return the seconds of a pull of all datasets, each of which ends in this state."""
    request = PullRequest(refs=[f"{NAME}.%"])
    begun = time.perf_counter()
    with clients.coordinator(node.node) as coordinator:
        last = {
            item.alias: item.state
            for item in coordinator.Pull(request, timeout=clients.STREAM_TIMEOUT_SECONDS)
        }
    seconds = time.perf_counter() - begun
    assert list(last.values()) == [state] * COUNT, next(item for item in last.items() if item[1] != state)
    return seconds


def _request(urls: Mapping[str, str], *, is_kept: bool) -> float:
    begun = time.perf_counter()
    pools = urllib3.PoolManager()
    for url in urls.values():
        used = pools if is_kept else urllib3.PoolManager()
        answer = used.request("GET", url, headers={"if-none-match": ETAG}, retries=False)
        assert answer.status == 304
    return time.perf_counter() - begun


@contextmanager
def _server() -> Iterator[str]:
    """Serve the URLs in a separate process, and send its address."""
    ours, its = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(its,))
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def _serve(caller: Connection) -> None:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            is_same = self.headers["if-none-match"] == ETAG
            self.send_response(304 if is_same else 200)
            self.send_header("ETag", ETAG)
            self.send_header("Content-Length", str(0 if is_same else len(BODY)))
            self.end_headers()
            if not is_same:
                self.wfile.write(BODY)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    caller.send(f"http://127.0.0.1:{server.server_port}")
    server.serve_forever()
