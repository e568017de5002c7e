"""Webhooks over real sockets: signed, retried with the same id, and independent of each other."""

import errno
import hmac
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from cryptography.exceptions import InvalidSignature
from odf_testing.clocks import ManualClock

from odf_common.adapters.local.key_files import node_key
from odf_common.adapters.local.stores import LocalRefStore
from odf_common.adapters.networks import Networks
from odf_common.errors import Unavailable
from odf_common.ports.store import CatalogEntry
from odf_sync.webhooks import sender as sender_module
from odf_sync.webhooks import webhook_store as webhook_module
from odf_sync.webhooks.deliveries import Deliveries, Look
from odf_sync.webhooks.webhook_store import (
    LONGEST_RETRY_MS,
    Delivery,
    DeliveryState,
    HookEvent,
    Outcome,
    Webhook,
    WebhookStore,
)

from .webhook_node import (
    CHAIN,
    DATASET,
    HEAD,
    NOW_MS,
    PREVIOUS,
    WAIT_SECONDS,
    Node,
    Receiver,
    await_none,
    ed25519_of,
    receiving,
    running,
)
from .webhook_node import home as home  # noqa: PLC0414 - a fixture
from .webhook_node import node as node  # noqa: PLC0414 - a fixture
from .webhook_node import quick as quick  # noqa: PLC0414 - a fixture
from .webhook_node import receiver as receiver  # noqa: PLC0414 - a fixture

UNUSED: Final = (cast("Any", None), cast("Any", None))  # by what is tested


def test_the_head_is_posted_at_once_and_whenever_it_moves(node: Node, receiver: Receiver) -> None:
    node.add(receiver.url)
    (first,) = receiver.await_posts(1)
    assert (first.method, first.target) == ("POST", "/hook?of=odf")
    facts = first.facts
    assert (facts["event"], facts["dataset"], facts["alias"]) == ("head", str(DATASET), "cities")
    assert (facts["head"], facts["sequenceNumber"]) == (str(HEAD), len(CHAIN) - 1)
    node.await_item(lambda item: item.state == DeliveryState.DELIVERED)
    node.move(PREVIOUS)
    second = receiver.await_posts(2)[1].facts
    assert second["head"] == str(PREVIOUS)
    node.await_item(lambda item: item.event_id == second["id"] and item.state == DeliveryState.DELIVERED)
    node.move(HEAD)
    third = receiver.await_posts(3)[2].facts
    assert third["head"] == str(HEAD)
    assert len({facts["id"], second["id"], third["id"]}) == 3


def test_delivery_continues_after_an_error_of_the_system(
    home: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()
    read = WebhookStore.all

    def fail_once(store: WebhookStore) -> tuple[Webhook, ...]:
        if not failed.is_set():
            failed.set()
            raise OSError(errno.EMFILE, "Too many open files")
        return read(store)

    monkeypatch.setattr(WebhookStore, "all", fail_once)
    with running(home) as node:
        node.add(receiver.url)
        receiver.await_posts(1)
    assert failed.is_set()


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
def test_a_failed_post_is_retried_with_the_same_id(node: Node, receiver: Receiver) -> None:
    receiver.statuses += [500, 302, 404]
    node.add(receiver.url)
    posts = receiver.await_posts(4)
    assert len({post.facts["id"] for post in posts}) == 1
    assert {post.target for post in posts} == {"/hook?of=odf"}
    item = node.await_item(lambda item: item.state == DeliveryState.DELIVERED)
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


def test_retry_after_of_a_receiver_is_respected(node: Node, receiver: Receiver) -> None:
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
def test_retry_after_is_seconds_or_a_date_and_anything_else_is_ignored(header: str, pause: int) -> None:
    assert sender_module.pause_ms(header, NOW_MS) == pause


def test_a_pause_is_kept_up_to_the_longest_delay() -> None:
    delivery = Delivery().with_event(HookEvent.HEAD, "f1620", event_id="1")
    pauses = {0: 5_000, 1_000: 5_000, 60_000: 60_000, 10**12: LONGEST_RETRY_MS}
    for pause, delay in pauses.items():
        assert delivery.after_failure(0, "status 503", spread=0, pause_ms=pause).next_ms == delay


def test_only_the_newest_head_is_posted_to_a_receiver_that_has_recovered(
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
    node.await_item(lambda item: item.state == DeliveryState.DELIVERED)
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


def test_an_undelivered_event_is_posted_after_a_restart_with_the_same_id(
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
        node.await_item(lambda item: item.state == DeliveryState.DELIVERED)
    LocalRefStore(home).compare_and_set(DATASET, expected=HEAD, new=PREVIOUS)
    with running(home) as node:
        assert receiver.await_posts(2)[1].facts["head"] == str(PREVIOUS)
        node.await_item(lambda item: item.state == DeliveryState.DELIVERED)
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
def test_posting_to_an_unreachable_receiver_of_a_deleted_dataset_ends(
    node: Node, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_module, "MAX_GONE_FAILURES", 3)
    node.add(receiver.url)
    node.await_item(lambda item: item.state == DeliveryState.DELIVERED)
    receiver.statuses += [500] * 100
    node.delete()
    await_none(node)
    assert len(receiver.posts) == 4


def test_a_dataset_that_exists_again_is_not_reported_as_deleted(
    node: Node, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_module, "FIRST_RETRY_MS", 2000)
    node.add(receiver.url, events=["gone"])
    receiver.statuses += [500]
    node.delete()
    node.await_item(lambda item: item.failures == 1)
    node.catalog.add(CatalogEntry(alias="cities", dataset_id=DATASET))
    node.await_item(lambda item: item.state == DeliveryState.IDLE)
    node.delete()
    assert [post.facts["event"] for post in receiver.await_posts(2)] == ["gone", "gone"]
    assert len({post.facts["id"] for post in receiver.posts}) == 2
    await_none(node)


def test_delays_grow_to_an_hour() -> None:
    delivery = Delivery().with_event(HookEvent.HEAD, "f1620", event_id="1")
    delays = []
    for _ in range(2000):
        delivery = delivery.after_failure(0, "x" * 1000, spread=0)
        delays.append(delivery.next_ms)
    assert delays[:4] == [5_000, 10_000, 20_000, 40_000]
    assert delays[-1] == LONGEST_RETRY_MS
    assert len(delivery.error) <= 300
    assert not delivery.is_hopeless
    gone = delivery.with_event(HookEvent.GONE, "", event_id="2")
    assert (gone.failures, gone.next_ms) == (0, LONGEST_RETRY_MS)


def test_delays_continue_to_grow_although_the_head_moves() -> None:
    first = Delivery().with_event(HookEvent.HEAD, "f1620", event_id="1")
    failed = first.after_failure(0, "status 503", spread=0).after_failure(5_000, "status 503", spread=0)
    moved = failed.with_event(HookEvent.HEAD, "f1621", event_id="2")
    assert (moved.state, moved.failures, moved.next_ms) == (DeliveryState.RETRYING, 2, 15_000)
    assert moved.after_failure(15_000, "status 503", spread=0).next_ms == 15_000 + 20_000


def test_a_chain_that_could_not_be_read_is_read_again_without_a_notification(
    node: Node, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "CHAIN_CHECK_SECONDS", 0.05)
    look, faults = Deliveries.next_delivery, [Unavailable(what="the disk"), Unavailable(what="the disk")]

    def look_again(deliveries: Deliveries, hook: Webhook) -> Look | None:
        if faults:
            raise faults.pop()
        return look(deliveries, hook)

    monkeypatch.setattr(Deliveries, "next_delivery", look_again)
    node.add(receiver.url)
    (post,) = receiver.await_posts(1)
    assert post.facts["head"] == str(HEAD)


@pytest.mark.parametrize(("chosen", "delay_ms"), [(min, 4_000), (max, 6_000)])
def test_receivers_that_fail_together_are_retried_up_to_a_fifth_earlier_or_later(
    monkeypatch: pytest.MonkeyPatch, chosen: Callable[..., float], delay_ms: int
) -> None:
    monkeypatch.setattr(random, "uniform", chosen)
    clock, store = ManualClock(), WebhookStore(None)
    delivery = Delivery().with_event(HookEvent.HEAD, "f1620", event_id="1")
    hook = Webhook(
        id="1",
        dataset=DATASET,
        alias="a",
        url="http://x",
        events=frozenset(HookEvent),
        secret=None,
        created_ms=0,
        delivery=delivery,
    )
    store.add(hook)
    deliveries = Deliveries(store, *UNUSED, node_key=cast("Any", None), clock=clock)
    saved = deliveries.settle(hook, Outcome(error="status 503"))
    assert saved is not None
    assert saved.delivery.next_ms - clock.ms == delay_ms
    assert store.all() == (saved,)


def test_nothing_of_a_failure_is_left_once_its_event_is_delivered_or_withdrawn() -> None:
    new = Delivery().with_event(HookEvent.HEAD, "f1620", event_id="1")
    failed = new.after_failure(1_000, "status 503", spread=0).after_failure(9_000, "status 503", spread=0)
    assert (failed.failures, failed.error, failed.next_ms) == (2, "status 503", 19_000)
    assert failed.after_success(7) == replace(new, is_pending=False, delivered_ms=7)
    assert failed.withdrawn() == replace(new, event_id="", is_pending=False)
    assert not failed.withdrawn().names(HookEvent.HEAD, "f1620")


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, Outcome()),
        (299, Outcome()),
        *[(status, f"status {status}; redirects are not followed") for status in (300, 307, 399)],
        *[(status, f"status {status}") for status in (199, 400, 503)],
        (410, Outcome(error="status 410", is_unwanted=True)),
    ],
)
def test_only_2xx_is_a_success_and_only_410_is_final(status: int, outcome: Outcome | str) -> None:
    sender = sender_module.WebhookPoster(Networks(), ManualClock())
    expected = Outcome(error=outcome) if isinstance(outcome, str) else outcome
    assert sender._outcome(status, "") == expected


def test_an_attempt_is_never_later_than_the_longest_delay() -> None:
    clock = ManualClock()
    sender = sender_module.WebhookSender(cast("Any", SimpleNamespace(clock=clock)), *UNUSED)
    delays = {}
    for ms in (-5, 0, 1500, 10**12):
        delivery = replace(
            Delivery().with_event(HookEvent.HEAD, "f1620", event_id="1"), next_ms=clock.ms + ms
        )
        delays[ms] = sender._delay_seconds(cast("Any", SimpleNamespace(delivery=delivery)))
    assert delays == {-5: 0.0, 0: 0.0, 1500: 1.5, 10**12: LONGEST_RETRY_MS / 1000}
