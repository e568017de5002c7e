"""A node of one dataset that sends webhooks, and a server that receives them."""

import base64
import hashlib
import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.local.key_files import node_key
from odf_common.adapters.local.secret_key_files import load_secret_keys
from odf_common.adapters.local.stores import LocalBlobStore, LocalRefStore
from odf_common.adapters.networks import Networks
from odf_common.chain.walk import iterate
from odf_common.codec.envelopes import envelope
from odf_common.dataset.state_cache import ChainStates, NoStateCache
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import Seed
from odf_common.ports.store import CatalogEntry
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_common.proto.odf.node.v1 import webhooks_pb2 as pb
from odf_common.service.run import resume_after_faults
from odf_sync.http.head_events import HeadWatch
from odf_sync.webhooks import webhook_store as webhook_module
from odf_sync.webhooks.deliveries import Deliveries
from odf_sync.webhooks.sender import WebhookPoster, WebhookSender
from odf_sync.webhooks.webhook_servicer import WebhookServicer
from odf_sync.webhooks.webhook_store import WebhookStore
from odf_sync.webhooks.webhook_targets import WebhookTargets

VECTOR = Path(__file__).parents[3] / "tests" / "vectors" / "datasets" / "cities.population"
CHAIN = tuple(
    iterate(
        (lambda name: (VECTOR / "blocks" / str(name)).read_bytes()),
        Multihash.parse((VECTOR / "refs" / "head").read_text()),
    )
)
HEAD, PREVIOUS = (name for name, _, _ in CHAIN[:2])
SEED = CHAIN[-1][1].block.event
assert isinstance(SEED, Seed)
DATASET = SEED.dataset_id
LOOPBACK = Networks.parse(("127.0.0.0/8",))
WAIT_SECONDS = 10
NOW_MS = 40_000
NO_CONTEXT: Any = None
BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Posted:
    """One request as it arrived."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def facts(self) -> dict[str, Any]:
        return dict(json.loads(self.body))

    def signed_message(self, url: str) -> tuple[bytes, dict[str, str]]:
        """Return the signed bytes and the signature's parameters, read from the headers as in RFC 9421."""
        label, _, parameters = self.headers["signature-input"].partition("=")
        names, _, rest = parameters.removeprefix("(").partition(")")
        values = {"@method": self.method, "@target-uri": url, **self.headers}
        lines = [f"{name}: {values[name[1:-1]]}" for name in names.split()]
        lines.append(f'"@signature-params": {parameters}')
        found = dict(re.findall(r';([a-z]+)="?([^";]+)"?', rest))
        assert names.split() == ['"@method"', '"@target-uri"', '"content-type"', '"content-digest"']
        assert label == "odf"
        return "\n".join(lines).encode(), found

    @property
    def signature(self) -> bytes:
        match = re.fullmatch(r"odf=:([A-Za-z0-9+/=]+):", self.headers["signature"])
        assert match is not None
        return base64.b64decode(match[1], validate=True)

    def require_digest(self) -> None:
        digest = base64.b64encode(hashlib.sha256(self.body).digest()).decode()
        assert self.headers["content-digest"] == f"sha-256=:{digest}:"


def ed25519_of(key_id: str) -> Ed25519PublicKey:
    """Read `did:key:z…` without the code under test."""
    number = 0
    for digit in key_id.removeprefix("did:key:z"):
        number = number * 58 + BASE58.index(digit)
    raw = number.to_bytes(34)
    assert raw[:2] == b"\xed\x01"
    return Ed25519PublicKey.from_public_bytes(raw[2:])


@dataclass(slots=True)
class Receiver:
    """A server that answers with the statuses a test sets."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    """Of the next answers; then 204."""
    retry_after: str = ""
    posts: list[Posted] = field(default_factory=list)
    arrived: threading.Condition = field(default_factory=threading.Condition)
    silent: threading.Event | None = None
    """Answers nothing before it is set."""

    def await_posts(self, count: int, seconds: float = WAIT_SECONDS) -> list[Posted]:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.posts) >= count, seconds), self.posts
            return list(self.posts)


@contextmanager
def receiving(silent: threading.Event | None = None) -> Iterator[Receiver]:
    receiver = Receiver(silent=silent)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            with receiver.arrived:
                receiver.posts.append(Posted(self.command, self.path, headers, body))
                status = receiver.statuses.pop(0) if receiver.statuses else 204
                receiver.arrived.notify_all()
            if receiver.silent is not None:
                receiver.silent.wait(WAIT_SECONDS)
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.send_header("Retry-After", receiver.retry_after)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_port}/hook?of=odf"
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass(slots=True)
class Node:
    """A node of one dataset, whose head a test moves."""

    home: Path
    catalog: LocalCatalog
    refs: LocalRefStore
    heads: HeadWatch
    hooks: WebhookServicer

    def move(self, new: Multihash) -> None:
        self.refs.compare_and_set(DATASET, expected=self.refs.head(DATASET), new=new)
        self.heads.subscription().handler(envelope(DATASET, bus.Committed()))

    def delete(self) -> None:
        self.catalog.remove("cities")
        self.heads.subscription().handler(envelope(DATASET, bus.DatasetRemoved()))

    def add(self, url: str, **options: Any) -> pb.AddWebhookReply:
        return self.hooks.AddWebhook(pb.AddWebhookRequest(dataset="cities", url=url, **options), NO_CONTEXT)

    def list(self) -> "list[pb.WebhookItem]":
        return list(self.hooks.ListWebhooks(pb.ListWebhooksRequest(), NO_CONTEXT).webhooks)

    def await_item(self, is_wanted: Callable[[pb.WebhookItem], bool]) -> pb.WebhookItem:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            (item,) = self.list()
            if is_wanted(item):
                return item
            assert time.monotonic() < deadline, item
            time.sleep(0.01)


@contextmanager
def running(home: Path, networks: Networks = LOOPBACK) -> Iterator[Node]:
    catalog, refs, heads = LocalCatalog(home), LocalRefStore(home), HeadWatch()
    states = ChainStates(LocalBlobStore(home), refs, NoStateCache())
    deliveries = Deliveries(WebhookStore(home), catalog, states, node_key=lambda: node_key(home / "keys"))
    poster = WebhookPoster(networks, deliveries.clock)
    sender = WebhookSender(deliveries, heads, poster)
    targets = WebhookTargets(
        networks=networks,
        poster=poster,
        secret_keys=lambda: load_secret_keys(home),
        node_key=lambda: node_key(home / "keys"),
        clock=deliveries.clock,
    )
    stop = threading.Event()
    threads = [
        threading.Thread(target=work, args=(stop,), daemon=True)
        for work in (partial(resume_after_faults, sender.run, "webhooks"), sender.end)
    ]
    for thread in threads:
        thread.start()
    try:
        yield Node(home, catalog, refs, heads, WebhookServicer(deliveries, sender, catalog, targets))
    finally:
        stop.set()
        for thread in threads:
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    shutil.copytree(VECTOR, tmp_path / "datasets" / DATASET.folder)
    LocalCatalog(tmp_path).add(CatalogEntry(alias="cities", dataset_id=DATASET))
    return tmp_path


@pytest.fixture
def node(home: Path) -> Iterator[Node]:
    with running(home) as node:
        yield node


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_module, "FIRST_RETRY_MS", 20)


def await_none(node: Node) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while node.list():
        assert time.monotonic() < deadline
        time.sleep(0.01)
