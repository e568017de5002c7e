"""Webhooks over real sockets: signed, retried with the same id, and each on its own."""

import base64
import hashlib
import hmac
import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from odf_common.adapters.local import LocalBlobStore, LocalCatalog, LocalRefStore
from odf_common.adapters.local.keys import node_key
from odf_common.adapters.networks import AddressForbidden, Networks
from odf_common.chain.walk import iterate
from odf_common.codec.bus import envelope
from odf_common.dataset.state_cache import ChainStates, NoStateCache
from odf_common.errors import AlreadyExists, InvalidInput, NotFound, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import Seed
from odf_common.ports.store import CatalogEntry
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_common.proto.odf.node.v1 import webhooks_pb2 as pb
from odf_sync.http.head_watch import HeadWatch
from odf_sync.webhooks import sender as sender_module
from odf_sync.webhooks import store as store_module
from odf_sync.webhooks import webhook as webhook_module
from odf_sync.webhooks.deliveries import Deliveries
from odf_sync.webhooks.grpc_servicer import WebhookServicer
from odf_sync.webhooks.sender import WebhookSender
from odf_sync.webhooks.store import FILE, TooManyWebhooks, WebhookStore, WebhooksUnreadable
from odf_sync.webhooks.webhook import LONGEST_RETRY_MS, Delivery, HookEvent, State

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
        """Return what is signed and the signature's parameters, read from the headers as RFC 9421 says."""
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
    """A server that answers as it is told to."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    """Of the next answers; then 204."""
    retry_after: str = ""
    posts: list[Posted] = field(default_factory=list)
    arrived: threading.Condition = field(default_factory=threading.Condition)
    silent: threading.Event | None = None
    """Answers nothing before it is set."""

    def await_posts(self, count: int) -> list[Posted]:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.posts) >= count, WAIT_SECONDS), self.posts
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
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
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
    """A node of one dataset, whose head moves as a test wants."""

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
    sender = WebhookSender(deliveries, heads, networks)
    stop = threading.Event()
    thread = threading.Thread(target=sender.run, args=(stop,))
    thread.start()
    try:
        yield Node(home, catalog, refs, heads, WebhookServicer(deliveries, sender, catalog, networks))
    finally:
        stop.set()
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


def test_the_head_is_posted_at_once_and_whenever_it_moves(node: Node, receiver: Receiver) -> None:
    node.add(receiver.url)
    (first,) = receiver.await_posts(1)
    assert (first.method, first.target) == ("POST", "/hook?of=odf")
    facts = first.facts
    assert (facts["event"], facts["dataset"], facts["alias"]) == ("head", str(DATASET), "cities")
    assert (facts["head"], facts["sequenceNumber"]) == (str(HEAD), len(CHAIN) - 1)
    node.await_item(lambda item: item.state == State.DELIVERED)
    node.move(PREVIOUS)
    second = receiver.await_posts(2)[1].facts
    assert second["head"] == str(PREVIOUS)
    node.await_item(lambda item: item.event_id == second["id"] and item.state == State.DELIVERED)
    node.move(HEAD)
    third = receiver.await_posts(3)[2].facts
    assert third["head"] == str(HEAD)
    assert len({facts["id"], second["id"], third["id"]}) == 3


def test_the_key_of_the_node_signs_url_and_body(node: Node, receiver: Receiver) -> None:
    item = node.add(receiver.url).item
    (post,) = receiver.await_posts(1)
    post.require_digest()
    message, parameters = post.signed_message(receiver.url)
    assert parameters["alg"] == item.algorithm == "ed25519"
    assert parameters["keyid"] == item.key
    assert parameters["tag"] == "odf-webhook"
    assert abs(int(parameters["created"]) - time.time()) < 60
    key = ed25519_of(parameters["keyid"])
    assert key.public_bytes_raw() == node_key(node.home / "keys").public_key
    key.verify(post.signature, message)
    other, _ = post.signed_message(receiver.url + "&more")
    with pytest.raises(InvalidSignature):
        key.verify(post.signature, other)


def test_a_secret_that_is_shown_once_signs_instead(node: Node, receiver: Receiver) -> None:
    reply = node.add(receiver.url, algorithm="hmac-sha256")
    (post,) = receiver.await_posts(1)
    post.require_digest()
    message, parameters = post.signed_message(receiver.url)
    assert (parameters["alg"], parameters["keyid"]) == ("hmac-sha256", reply.item.id)
    assert post.signature == hmac.digest(reply.secret.encode(), message, "sha256")
    assert len(reply.secret) >= 43
    assert reply.secret not in str(node.list())
    (stored,) = WebhookStore(node.home).all()
    assert stored.secret == reply.secret
    assert reply.secret not in repr(stored)


@pytest.mark.usefixtures("quick")
def test_what_fails_is_posted_again_with_the_same_id(node: Node, receiver: Receiver) -> None:
    receiver.statuses += [500, 302, 404]
    node.add(receiver.url)
    posts = receiver.await_posts(4)
    assert len({post.facts["id"] for post in posts}) == 1
    assert {post.target for post in posts} == {"/hook?of=odf"}
    item = node.await_item(lambda item: item.state == State.DELIVERED)
    assert (item.failures, item.error, item.HasField("next_attempt")) == (0, "", False)


def test_the_last_error_and_the_next_attempt_are_listed(node: Node, receiver: Receiver) -> None:
    receiver.statuses += [302]
    node.add(receiver.url)
    item = node.await_item(lambda item: item.failures > 0)
    assert (item.state, item.failures) == ("retrying", 1)
    assert item.error == "status 302; redirects are not followed"
    assert 3_000 < item.next_attempt - time.time() * 1000 < 7_000
    node.move(PREVIOUS)
    time.sleep(0.1)
    assert len(receiver.posts) == 1, "a commit hurries no receiver that fails"


def test_a_receiver_is_left_alone_for_as_long_as_it_asks(node: Node, receiver: Receiver) -> None:
    receiver.statuses, receiver.retry_after = [503], "600"
    node.add(receiver.url)
    item = node.await_item(lambda item: item.failures > 0)
    assert 590_000 < item.next_attempt - time.time() * 1000 <= 600_000


def test_a_receiver_that_answers_410_gets_no_more_events(node: Node, receiver: Receiver) -> None:
    receiver.statuses = [410]
    node.add(receiver.url)
    await_none(node)
    node.move(PREVIOUS)
    time.sleep(0.1)
    assert len(receiver.posts) == 1


@pytest.mark.parametrize(
    ("header", "pause"),
    [
        *[("", 0), ("5", 5_000), (" 5 ", 5_000), ("-5", 0), ("1.5", 0), ("soon", 0), ("9" * 5000, 0)],
        *[("Thu, 01 Jan 1970 00:01:40 GMT", 100_000 - NOW_MS), ("Thu, 01 Jan 1970 00:00:01 GMT", 0)],
        *[("Fri, 31 Dec 99999 23:59:59 GMT", 0), ("\u0665", 0)],
    ],
)
def test_a_pause_is_seconds_or_a_date_and_anything_else_is_none(header: str, pause: int) -> None:
    assert sender_module.pause_ms(header, NOW_MS) == pause


def test_a_pause_is_kept_up_to_the_longest_delay() -> None:
    delivery = Delivery().with_event(HookEvent.HEAD, "f1620", event_id="1")
    pauses = {0: 5_000, 1_000: 5_000, 60_000: 60_000, 10**12: LONGEST_RETRY_MS}
    for pause, delay in pauses.items():
        assert delivery.failed(0, "status 503", spread=0, pause_ms=pause).next_ms == delay


def test_only_the_newest_head_is_posted_to_a_receiver_that_is_back(
    node: Node, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_module, "FIRST_RETRY_MS", 2000)
    receiver.statuses += [503]
    node.add(receiver.url)
    receiver.await_posts(1)
    node.move(PREVIOUS)
    node.move(HEAD)
    node.move(PREVIOUS)
    first, second = receiver.await_posts(2)
    assert (first.facts["head"], second.facts["head"]) == (str(HEAD), str(PREVIOUS))
    assert first.facts["id"] != second.facts["id"]
    node.await_item(lambda item: item.state == State.DELIVERED)
    assert len(receiver.posts) == 2


def test_a_receiver_that_does_not_answer_delays_no_other(
    node: Node, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = threading.Event()
    with receiving(silent) as slow:
        for number in range(20):
            node.add(f"{slow.url}&n={number}")
        slow.await_posts(20)
        begun = time.monotonic()
        node.add(receiver.url)
        receiver.await_posts(1)
        assert time.monotonic() - begun < 2
        monkeypatch.setattr(sender_module, "ATTEMPT_SECONDS", 0.1)
        node.add(f"{slow.url}&last")
        deadline = time.monotonic() + WAIT_SECONDS
        while not any(item.error == "no answer in 0.1 s" for item in node.list()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        silent.set()


def test_what_was_not_delivered_is_after_a_restart_with_the_same_id(
    home: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_module, "FIRST_RETRY_MS", 1500)
    receiver.statuses += [503]
    with running(home) as node:
        node.add(receiver.url)
        before = node.await_item(lambda item: item.failures == 1)
    store = WebhookStore(home)
    (hook,) = store.all()
    assert hook.delivery.is_pending
    with running(home) as node:
        (item,) = node.list()
        assert (item.event_id, item.next_attempt) == (before.event_id, before.next_attempt)
        first, second = receiver.await_posts(2)
    assert first.facts == second.facts


def test_a_head_that_moved_while_the_node_was_down_is_posted(home: Path, receiver: Receiver) -> None:
    with running(home) as node:
        node.add(receiver.url)
        node.await_item(lambda item: item.state == State.DELIVERED)
    LocalRefStore(home).compare_and_set(DATASET, expected=HEAD, new=PREVIOUS)
    with running(home) as node:
        assert receiver.await_posts(2)[1].facts["head"] == str(PREVIOUS)
        node.await_item(lambda item: item.state == State.DELIVERED)
    with running(home) as node:
        time.sleep(0.1)
    assert len(receiver.posts) == 2, "what was delivered is not posted again"


def test_a_deleted_dataset_is_reported_and_its_webhook_ends(node: Node, receiver: Receiver) -> None:
    node.add(receiver.url, events=["gone"])
    node.delete()
    (post,) = receiver.await_posts(1)
    facts = post.facts
    assert (facts.pop("event"), len(facts.pop("id"))) == ("gone", 36)
    assert facts == {"dataset": str(DATASET), "alias": "cities"}
    await_none(node)


def test_a_webhook_of_heads_ends_with_its_dataset(node: Node, receiver: Receiver) -> None:
    node.add(receiver.url, events=["head"])
    receiver.await_posts(1)
    node.delete()
    await_none(node)
    assert len(receiver.posts) == 1


@pytest.mark.usefixtures("quick")
def test_a_receiver_that_is_gone_too_is_given_up(
    node: Node, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_module, "MAX_GONE_FAILURES", 3)
    node.add(receiver.url)
    node.await_item(lambda item: item.state == State.DELIVERED)
    receiver.statuses += [500] * 100
    node.delete()
    await_none(node)
    assert len(receiver.posts) == 4


def test_a_dataset_that_is_back_is_not_reported_as_gone(
    node: Node, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_module, "FIRST_RETRY_MS", 2000)
    node.add(receiver.url, events=["gone"])
    receiver.statuses += [500]
    node.delete()
    node.await_item(lambda item: item.failures == 1)
    node.catalog.add(CatalogEntry(alias="cities", dataset_id=DATASET))
    node.await_item(lambda item: item.state == State.IDLE)
    node.delete()
    assert [post.facts["event"] for post in receiver.await_posts(2)] == ["gone", "gone"]
    assert len({post.facts["id"] for post in receiver.posts}) == 2
    await_none(node)


def await_none(node: Node) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while node.list():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_deleted_webhook_posts_nothing(node: Node, receiver: Receiver) -> None:
    item = node.add(receiver.url).item
    node.await_item(lambda item: item.state == State.DELIVERED)
    node.hooks.DeleteWebhook(pb.DeleteWebhookRequest(id=item.id), NO_CONTEXT)
    node.move(PREVIOUS)
    time.sleep(0.1)
    assert (len(receiver.posts), node.list()) == (1, [])
    with pytest.raises(NotFound):
        node.hooks.DeleteWebhook(pb.DeleteWebhookRequest(id=item.id), NO_CONTEXT)


def test_private_addresses_are_refused_unless_allowed(home: Path, receiver: Receiver) -> None:
    with running(home, Networks()) as node:
        for url in (receiver.url, "http://localhost/", "http://[::1]/", "http://169.254.169.254/latest"):
            with pytest.raises(AddressForbidden) as caught:
                node.add(url)
            assert "ODF_FETCH_NETWORKS" in caught.value.advice()
        assert node.list() == []


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_address_that_is_connected_to_is_checked_again(home: Path, receiver: Receiver, host: str) -> None:
    with running(home) as node:
        receiver.statuses += [503] * 1000
        node.add(receiver.url.replace("127.0.0.1", host))
        node.await_item(lambda item: item.failures > 0)
    count = len(receiver.posts)
    store = WebhookStore(home)
    with running(home, Networks()) as node:
        item = node.await_item(lambda item: "address" in item.error)
        assert "127.0.0.1" in item.error
        assert "is not a public address" in item.error
    assert len(receiver.posts) == count
    assert store.all()[0].delivery.is_pending


def test_what_cannot_be_reached_says_why(node: Node, receiver: Receiver) -> None:
    with receiving() as closed:
        url = closed.url
    node.add(url)
    assert "no connection: " in node.await_item(lambda item: item.failures > 0).error
    with pytest.raises(Unavailable, match="resolved"):
        node.add("https://nothing.invalid/")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://127.0.0.1/",
        "/path",
        "",
        "http://",
        "http://u:p@127.0.0.1/",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1/" + "x" * 2000,
    ],
)
def test_what_is_no_url_is_refused(node: Node, url: str) -> None:
    with pytest.raises(InvalidInput):
        node.add(url)


def test_a_url_is_kept_as_it_is_requested_and_signed(node: Node, receiver: Receiver) -> None:
    url = receiver.url.partition("/hook")[0]
    node.add(url.replace("http", "HTTP"))
    (post,) = receiver.await_posts(1)
    (item,) = node.list()
    assert (item.url, post.target) == (url + "/", "/")
    message, parameters = post.signed_message(url + "/")
    ed25519_of(parameters["keyid"]).verify(post.signature, message)
    node.hooks.DeleteWebhook(pb.DeleteWebhookRequest(id=item.id), NO_CONTEXT)
    node.add(url + "/ä b?q=%2f&r=ü")
    post = receiver.await_posts(2)[1]
    (item,) = node.list()
    assert item.url == url + post.target
    message, _ = post.signed_message(item.url)
    ed25519_of(parameters["keyid"]).verify(post.signature, message)


def test_a_dataset_has_one_webhook_per_url_and_a_node_a_limit(
    node: Node, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add(receiver.url)
    with pytest.raises(AlreadyExists):
        node.add(receiver.url, algorithm="hmac-sha256")
    with pytest.raises(NotFound):
        node.hooks.AddWebhook(pb.AddWebhookRequest(dataset="other", url=receiver.url), NO_CONTEXT)
    for options in ({"events": ["commit"]}, {"algorithm": "rsa"}):
        with pytest.raises(InvalidInput):
            node.add(receiver.url, **options)
    monkeypatch.setattr(store_module, "MAX_WEBHOOKS", 1)
    with pytest.raises(TooManyWebhooks):
        node.add(receiver.url + "&2")


def test_a_damaged_database_is_named_and_the_file_is_private(home: Path, receiver: Receiver) -> None:
    with running(home) as node:
        node.add(receiver.url)
    assert (home / FILE).stat().st_mode & 0o777 == 0o600
    (home / FILE).write_bytes(b"no database at all, and longer than a header" * 10)
    with running(home) as node, pytest.raises(WebhooksUnreadable) as caught:
        node.list()
    assert "backup" in caught.value.advice()


def test_delays_grow_to_an_hour() -> None:
    delivery = Delivery().with_event(HookEvent.HEAD, "f1620", event_id="1")
    delays = []
    for _ in range(2000):
        delivery = delivery.failed(0, "x" * 1000, spread=0)
        delays.append(delivery.next_ms)
    assert delays[:4] == [5_000, 10_000, 20_000, 40_000]
    assert delays[-1] == LONGEST_RETRY_MS
    assert len(delivery.error) <= 300
    assert not delivery.is_hopeless
    gone = delivery.with_event(HookEvent.GONE, "", event_id="2")
    assert (gone.failures, gone.next_ms) == (0, LONGEST_RETRY_MS)
