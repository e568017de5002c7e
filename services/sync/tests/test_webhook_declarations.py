"""Which webhooks may be added, how they are stored, and to which addresses they are sent."""

import asyncio
import socket
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from odf_testing.builders import a_dataset
from odf_testing.clocks import ManualClock
from structlog.testing import capture_logs

from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.local.stores import LocalBlobStore, LocalRefStore
from odf_common.adapters.networks import AddressForbidden, Networks
from odf_common.dataset.state_cache import ChainStates, NoStateCache
from odf_common.errors import AlreadyExists, InvalidInput, NotFound, Unavailable
from odf_common.proto.odf.node.v1 import webhooks_pb2 as pb
from odf_sync.http.head_events import HeadWatch
from odf_sync.webhooks import webhook_store as store_module
from odf_sync.webhooks import webhook_store as webhook_module
from odf_sync.webhooks.deliveries import Deliveries, Look
from odf_sync.webhooks.sender import WebhookPoster, WebhookSender
from odf_sync.webhooks.webhook_store import (
    FILE,
    Delivery,
    DeliveryState,
    HookEvent,
    Outcome,
    TooManyWebhooks,
    Webhook,
    WebhookStore,
    WebhooksUnreadable,
)

from .webhook_node import DATASET, NO_CONTEXT, PREVIOUS, Node, Receiver, ed25519_of, receiving, running
from .webhook_node import home as home  # noqa: PLC0414 - a fixture
from .webhook_node import node as node  # noqa: PLC0414 - a fixture
from .webhook_node import quick as quick  # noqa: PLC0414 - a fixture
from .webhook_node import receiver as receiver  # noqa: PLC0414 - a fixture


def test_a_deleted_webhook_posts_nothing(node: Node, receiver: Receiver) -> None:
    item = node.add(receiver.url).item
    node.await_item(lambda item: item.state == DeliveryState.DELIVERED)
    node.hooks.DeleteWebhook(pb.DeleteWebhookRequest(id=item.id), NO_CONTEXT)
    node.move(PREVIOUS)
    time.sleep(0.1)
    assert (len(receiver.posts), node.list()) == (1, [])
    with pytest.raises(NotFound):
        node.hooks.DeleteWebhook(pb.DeleteWebhookRequest(id=item.id), NO_CONTEXT)


def test_a_deleted_webhook_is_not_retried(
    node: Node, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_module, "FIRST_RETRY_MS", 300)
    receiver.statuses += [503]
    item = node.add(receiver.url).item
    node.await_item(lambda item: item.failures == 1)
    node.hooks.DeleteWebhook(pb.DeleteWebhookRequest(id=item.id), NO_CONTEXT)
    time.sleep(0.5)  # longer than the delay of the next attempt
    assert len(receiver.posts) == 1


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


def test_an_unreachable_receiver_is_reported_with_the_reason(node: Node, receiver: Receiver) -> None:
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
        "http://u@127.0.0.1/",
        "http://:p@127.0.0.1/",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1/" + "x" * 2000,
    ],
)
def test_an_invalid_url_is_refused(node: Node, url: str) -> None:
    with pytest.raises(InvalidInput, match=r"^url: "):
        node.add(url)


def test_a_url_is_stored_as_it_is_requested_and_signed(node: Node, receiver: Receiver) -> None:
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
        with pytest.raises(InvalidInput, match=r"^(event|algorithm): expected"):
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


def test_an_address_is_checked_again_when_it_is_connected_to() -> None:
    def connecting(networks: Networks) -> socket.socket:
        return WebhookPoster(networks, ManualClock())._socket(
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 80))
        )

    with pytest.raises(AddressForbidden):
        connecting(Networks())
    connecting(Networks.parse(("127.0.0.0/8",))).close()


def test_the_outcome_of_an_attempt_does_not_bring_a_removed_webhook_back() -> None:
    store, events = WebhookStore(None), frozenset({HookEvent.HEAD})
    hook = Webhook(
        id="1", dataset=a_dataset(), alias="cities", url="https://example.org", events=events, created_ms=0
    )
    hook = replace(hook, delivery=Delivery().with_event(HookEvent.HEAD, "f1620", event_id="2"))
    unused: Any = None
    deliveries = Deliveries(store, unused, unused, node_key=unused)
    store.add(hook)
    delivered = deliveries.settle(hook, Outcome())
    assert delivered is not None
    assert store.all() == (delivered,)
    store.remove("1")
    with capture_logs():
        assert deliveries.settle(hook, Outcome(error="status 500")) is None
    assert store.all() == ()


def a_hook(*events: HookEvent) -> Webhook:
    return Webhook(
        id="1",
        dataset=DATASET,
        alias="cities",
        url="https://example.org",
        events=frozenset(events),
        created_ms=0,
    )


def test_each_webhook_has_one_task_which_ends_with_it() -> None:
    pending = Delivery().with_event(HookEvent.HEAD, "f1620", event_id="2")
    clock = ManualClock()
    hooks = [replace(a_hook(HookEvent.HEAD), delivery=replace(pending, next_ms=clock.ms + 10**6))]
    deliveries = SimpleNamespace(clock=clock, store=SimpleNamespace(all=lambda: tuple(hooks)))
    sender, session = (
        WebhookSender(cast("Any", deliveries), HeadWatch(), WebhookPoster(Networks(), clock)),
        cast("Any", None),
    )

    async def reconcile() -> bool:
        tasks: dict[str, asyncio.Task[None]] = {}
        await sender._reconcile(tasks, session)
        (task,) = tasks.values()
        await sender._reconcile(tasks, session)
        assert tasks == {"1": task}
        hooks.clear()
        await sender._reconcile(tasks, session)
        assert tasks == {}
        await asyncio.gather(task, return_exceptions=True)
        return task.cancelled()

    assert asyncio.run(reconcile())


def test_while_nothing_changes_webhooks_are_not_read_again(
    node: Node, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add(receiver.url)
    node.await_item(lambda item: item.state == DeliveryState.DELIVERED)
    reads: list[WebhookStore] = []

    def read(store: WebhookStore) -> tuple[Webhook, ...]:
        reads.append(store)
        return ()

    monkeypatch.setattr(WebhookStore, "all", read)
    time.sleep(0.05)
    assert len(reads) < 3


def test_a_webhook_of_deletions_waits_while_its_dataset_exists(home: Path) -> None:
    states = ChainStates(LocalBlobStore(home), LocalRefStore(home), NoStateCache())
    store, unused = WebhookStore(None), cast("Any", None)
    deliveries = Deliveries(store, LocalCatalog(home), states, node_key=unused)
    hook = a_hook(HookEvent.GONE)
    store.add(hook)
    assert deliveries.next_delivery(hook) == Look(hook=hook)
    gone = replace(hook, delivery=Delivery().with_event(HookEvent.GONE, "", event_id="2"))
    found = deliveries.next_delivery(gone)
    assert found is not None
    assert (found.body, found.hook.delivery.is_pending) == (None, False)
    assert store.all() == (found.hook,)
    store.remove("1")
    assert deliveries.next_delivery(gone) is None
