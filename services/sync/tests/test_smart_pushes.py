"""Pushes between two nodes over real sockets: refused, replaced and resumed; nothing half-written is visible."""

import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import urllib3
from odf_testing.builders import a_dataset
from odf_testing.sync_node import SyncNode

from odf_common.chain.walk import iterate
from odf_common.codec.envelopes import Envelope
from odf_common.errors import InvalidInput, NotFound, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId, Name
from odf_common.metadata.events import SetInfo
from odf_common.ports.store import CatalogEntry, ObjectKind, block_reader
from odf_common.proto.odf.bus.v1.bus_pb2 import ImportChain
from odf_sync.access.access_store import AccessStore
from odf_sync.access.directory import Directory
from odf_sync.access.rules import Scope
from odf_sync.http import serve_push, smart_routes
from odf_sync.http.authorization import Authorizer
from odf_sync.smart import archive
from odf_sync.smart import messages as msg
from odf_sync.smart.archive import ReadSignature
from odf_sync.smart.exchange import TransferRefused
from odf_sync.smart.messages import VERSION, VERSION_HEADER, Upload
from odf_sync.transfer import push_to_node
from odf_sync.transfer.push_dataset import AnotherDataset
from odf_sync.transfer.push_source import PushDiverged, RemoteAhead, Uploader


@pytest.fixture
def here(tmp_path: Path) -> SyncNode:
    """A node with a dataset of a few blocks and slices."""
    node = SyncNode(tmp_path / "here")
    node.add_cities(["Kyiv", "Osaka"], ["Quito"], ["Accra", "Turin", "Lima"])
    return node


@pytest.fixture
def there(tmp_path: Path) -> SyncNode:
    return SyncNode(tmp_path / "there")


def test_a_dataset_is_the_same_on_the_other_node(here: SyncNode, there: SyncNode) -> None:
    with there.served() as base:
        *steps, last = here.push("cities", f"odf+{base}/copy")
        here.coordinator.push("cities", "Oslo", minute=9)
        *_, again = here.push("cities", f"odf+{base}/copy")
        *_, third = here.push("cities", f"odf+{base}/copy")

    states = dict.fromkeys(step.state for step in steps)  # objects that arrive together are one step
    assert list(states) == ["comparing", "blocks", "objects", "committing"]
    assert (last.state, again.state, third.state) == ("updated", "updated", "up-to-date")
    assert (again.new_blocks, again.new_records) == (1, 1)
    assert there.head("copy") == here.head("cities") == third.head
    assert there.content("copy") == here.content("cities")


def test_the_target_of_a_push_is_remembered(here: SyncNode, there: SyncNode) -> None:
    with pytest.raises(InvalidInput, match="with --to"):
        here.push("cities", "")
    with there.served() as base:
        here.push("cities", f"odf+{base}/copy")
        here.coordinator.push("cities", "Oslo", minute=9)
        assert here.push("cities", "")[-1].state == "updated"
    assert there.head("copy") == here.head("cities")


def test_a_node_that_is_ahead_is_not_pushed_to(here: SyncNode, there: SyncNode) -> None:
    with there.served() as base:
        url = f"odf+{base}/cities"
        here.push("cities", url)
        before = here.head("cities")
        here.coordinator.push("cities", "Oslo", minute=9)
        here.push("cities", url)
        rewind(here, before)

        with pytest.raises(RemoteAhead) as refused:
            here.push("cities", url)

        assert refused.value.blocks == 1
        here.push("cities", url, is_forced=True)
    assert there.head("cities") == before


def rewind(node: SyncNode, block: object) -> None:
    entry = node.catalog.by_alias("cities")
    assert entry is not None
    node.refs.compare_and_set(entry.dataset_id, expected=node.head("cities"), new=block)  # type: ignore[arg-type]


def diverge(here: SyncNode, there: SyncNode, url: str) -> object:
    """Push, and have both nodes continue with other records; return the common block."""
    here.push("cities", url)
    common = here.head("cities")
    here.coordinator.push("cities", "Oslo", minute=9)
    here.push("cities", url)
    rewind(here, common)
    here.coordinator.push("cities", "Bern", "Rome", minute=10)
    return common


def test_a_diverged_chain_is_refused_with_the_common_block_and_replaced_by_force(
    here: SyncNode, there: SyncNode
) -> None:
    with there.served() as base:
        url = f"odf+{base}/cities"
        common = diverge(here, there, url)
        theirs = there.head("cities")

        with pytest.raises(PushDiverged) as refused:
            here.push("cities", url)
        assert refused.value.common_block == str(common)
        assert there.head("cities") == theirs

        *steps, last = here.push("cities", url, is_forced=True)

    assert [step.replaced for step in steps if step.state == "replacing"] == [last.replaced]
    assert last.state == "updated"
    assert there.head("cities") == here.head("cities")


def test_force_needs_more_than_an_editors_role(here: SyncNode, there: SyncNode, tmp_path: Path) -> None:
    directory = Directory(AccessStore(tmp_path), is_multi_tenant=False)
    directory.add_account(Name("ann"), None)
    editor, maintainer = (
        directory.create_token(Name("ann"), label="", scope=scope)[0].text()
        for scope in (Scope.WRITE, Scope.MANAGE)  # what a token may do at most is a role
    )
    authorizer = Authorizer(catalog=there.catalog, local_writers="off", directory=directory)
    with there.served(authorizer) as base:
        here.push("cities", f"odf+{base}/cities", is_forced=True, token=editor)  # new: nothing is replaced
    with there.served() as base:
        diverge(here, there, f"odf+{base}/cities")
    theirs = there.head("cities")
    with there.served(authorizer) as base:
        with pytest.raises(TransferRefused, match="maintainer or owner"):
            here.push("cities", f"odf+{base}/cities", is_forced=True, token=editor)
        assert there.head("cities") == theirs
        here.push("cities", f"odf+{base}/cities", is_forced=True, token=maintainer)
    assert there.head("cities") == here.head("cities")


def test_another_dataset_is_not_replaced_even_by_force(here: SyncNode, there: SyncNode) -> None:
    there.add_cities()
    head = there.head("cities")
    with there.served() as base:
        with pytest.raises(AnotherDataset):
            here.push("cities", f"odf+{base}/cities")
        with pytest.raises(TransferRefused, match="another id or kind"):
            here.push("cities", f"odf+{base}/cities", is_forced=True)
    assert there.head("cities") == head


def test_a_dataset_has_one_name_on_the_other_node(here: SyncNode, there: SyncNode) -> None:
    with there.served() as base:
        here.push("cities", f"odf+{base}/cities")
        with pytest.raises(TransferRefused, match=r"refused: it has this dataset as cities$") as refused:
            here.push("cities", f"odf+{base}/towns")
    assert refused.value.advice().startswith("push it under the name that it has there")
    assert there.head("towns") is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cities.of.europe123", "it has this dataset as cities.of.europe123"),
        ("cities.of.europe1234", "it has this as cities.of.europe1234"),
        ("cities.of.all.continents.12", "it has this as cities.of.all.continents.12"),
        ("cities.of.all.continents.123", "it has this dataset under another name"),
    ],
)
def test_the_other_name_is_given_if_a_close_frame_has_room_for_it(
    here: SyncNode, there: SyncNode, name: str, text: str
) -> None:
    with there.served() as base:
        here.push("cities", f"odf+{base}/{name}")
        with pytest.raises(TransferRefused, match=rf"the other node refused: {text}$"):
            here.push("cities", f"odf+{base}/towns")


def test_of_two_names_that_are_pushed_at_once_the_second_is_refused(
    here: SyncNode, there: SyncNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = there.request

    def second(topic: str, dataset: DatasetId, body: Any, *, timeout: float) -> Envelope | None:
        request(topic, dataset, ImportChain(new_head=body.new_head, alias="towns"), timeout=timeout)
        return request(topic, dataset, body, timeout=timeout)

    monkeypatch.setattr(there, "request", second)
    with there.served() as base, pytest.raises(TransferRefused, match="under another name"):
        here.push("cities", f"odf+{base}/cities")
    assert there.head("cities") is None


def test_a_chain_whose_object_was_not_sent_is_refused_and_nothing_has_the_name(
    here: SyncNode, there: SyncNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Uploader, "send", lambda *_: None)
    with there.served() as base, pytest.raises(TransferRefused, match="not sent"):
        here.push("cities", f"odf+{base}/cities")
    assert there.head("cities") is None
    assert list(there.catalog.entries()) == []


def test_a_commit_on_the_other_node_during_a_push_wins(
    here: SyncNode, there: SyncNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with there.served() as base:
        url = f"odf+{base}/cities"
        here.push("cities", url)
        before = here.head("cities")
        here.coordinator.push("cities", "Oslo", minute=9)
        theirs = here.head("cities")
        here.push("cities", url)
        rewind(there, before)
        rewind(here, before)
        here.coordinator.push("cities", "Bern", minute=10)
        send = Uploader.send

        def overtaken(uploader: Uploader, one: Upload) -> None:
            send(uploader, one)
            rewind(there, theirs)

        monkeypatch.setattr(Uploader, "send", overtaken)
        with pytest.raises(TransferRefused):
            here.push("cities", url)
    assert there.head("cities") == theirs


def test_lists_of_objects_may_be_truncated(
    here: SyncNode, there: SyncNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(msg, "LISTED", 1)
    with there.served() as base:
        steps = here.push("cities", f"odf+{base}/cities")
    assert there.content("cities") == here.content("cities")
    sent = [(step.done, step.total) for step in steps if step.state == "objects"]
    assert sent == [(number, len(sent)) for number in range(1, len(sent) + 1)]
    assert len(sent) > 1


def test_a_long_chain_is_pushed_in_parts_and_an_interrupted_push_continues_with_its_part(
    here: SyncNode, there: SyncNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    write = archive.write_archive

    def counted(blocks: Iterable[tuple[Multihash, bytes]], out: BinaryIO, signature: ReadSignature) -> None:
        part = list(blocks)
        sizes.append(sum(len(raw) for _, raw in part))
        write(part, out, signature)

    monkeypatch.setattr(archive, "write_archive", counted)
    monkeypatch.setattr(push_to_node, "PART_BYTES", limit := 700)
    blocks = [raw for (kind, _), raw in here.content("cities").items() if kind is ObjectKind.BLOCK]
    assert sum(map(len, blocks)) > 2 * limit
    send = Uploader.send
    seen: list[Multihash | None] = []

    def lost(uploader: Uploader, one: Upload) -> None:
        if there.head("cities") is not None and not seen:
            seen.append(there.head("cities"))
            raise Unavailable(what="the network")
        send(uploader, one)

    with there.served() as base:
        monkeypatch.setattr(Uploader, "send", lost)
        with pytest.raises(Unavailable):
            here.push("cities", f"odf+{base}/cities")
        assert seen == [there.head("cities")]
        parts = len(sizes)
        *_, last = here.push("cities", f"odf+{base}/cities")

    assert last.new_blocks < len(blocks)
    assert sum(sizes) - sizes[parts - 1] == sum(map(len, blocks))  # only one part was sent twice
    assert max(sizes) <= max(limit, *map(len, blocks))
    assert there.content("cities") == here.content("cities")


@pytest.mark.parametrize("spare", [0, -1])
def test_a_part_has_as_many_blocks_as_fit(
    here: SyncNode, there: SyncNode, monkeypatch: pytest.MonkeyPatch, spare: int
) -> None:
    blocks = [raw for (kind, _), raw in here.content("cities").items() if kind is ObjectKind.BLOCK]
    counted = sum(len(raw) + archive.HEADER_BYTES for raw in blocks)
    monkeypatch.setattr(push_to_node, "PART_BYTES", counted + spare)
    parts: list[str] = []
    send = push_to_node._send_part

    def noted(source: Any, *rest: Any) -> Any:
        parts.append(source.alias)
        return send(source, *rest)

    monkeypatch.setattr(push_to_node, "_send_part", noted)
    with there.served() as base:
        assert here.push("cities", f"odf+{base}/cities")[-1].new_blocks == len(blocks)
    assert len(parts) == (2 if spare else 1)


def test_a_chain_is_replaced_in_one_exchange(
    here: SyncNode, there: SyncNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, an interruption would leave the other node with a part of the new chain, and without its own."""
    parts: list[Any] = []
    send = push_to_node._send_part

    def noted(source: Any, to: Any, request: Any, part: Any, head: Any) -> Any:
        parts.append(part)
        return send(source, to, request, part, head)

    monkeypatch.setattr(push_to_node, "_send_part", noted)
    monkeypatch.setattr(push_to_node, "PART_BYTES", 1)
    with there.served() as base:
        diverge(here, there, f"odf+{base}/cities")
        parts.clear()
        *_, last = here.push("cities", f"odf+{base}/cities", is_forced=True)
        assert [part.head for part in parts] == [here.head("cities")]
        assert (last.state, there.head("cities")) == ("updated", here.head("cities"))
        entry = here.catalog.by_alias("cities")
        assert entry is not None
        chain = iterate(block_reader(here.blobs, entry.dataset_id), parts[0].head)
        assert last.new_blocks == sum(1 for _ in chain), "from the first one on"
        diverge(here, there, f"odf+{base}/cities")
        monkeypatch.setattr(push_to_node, "BLOCKS_BYTES_LIMIT", 100)
        with pytest.raises(InvalidInput, match="at most 100 can replace another"):
            here.push("cities", f"odf+{base}/cities", is_forced=True)


def test_progress_requests_are_answered(
    here: SyncNode, there: SyncNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_push, "PROGRESS_SECONDS", 0.02)
    monkeypatch.setattr(push_to_node, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(push_to_node, "CROSSING_SECONDS", 0.0)
    send, asked = Uploader.send, threading.Event()

    def slow(uploader: Uploader, one: Upload) -> None:
        asked.wait(0.3)
        send(uploader, one)

    monkeypatch.setattr(Uploader, "send", slow)
    with there.served() as base:
        here.push("cities", f"odf+{base}/cities")
    assert there.content("cities") == here.content("cities")


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_slow_push_has_succeeded_although_another_one_has_moved_the_head_since(
    here: SyncNode, there: SyncNode, monkeypatch: pytest.MonkeyPatch, *, is_replaced: bool
) -> None:
    monkeypatch.setattr(push_to_node, "CROSSING_SECONDS", 0.0)
    monkeypatch.setattr(smart_routes, "FAULT_SECONDS", 0.1)
    with there.served() as base:
        here.push("cities", f"odf+{base}/cities")
        before = here.head("cities")
        here.coordinator.push("cities", "Oslo", minute=9)
        request = there.request

        def overtaken(*arguments: Any, **options: Any) -> Envelope | None:
            answer = request(*arguments, **options)
            if is_replaced:
                rewind(there, before)
            else:
                there.add_block("cities", SetInfo(description="theirs"))
            return answer

        monkeypatch.setattr(there, "request", overtaken)
        *_, last = here.push("cities", f"odf+{base}/cities")
    assert (last.state, last.head) == ("updated", here.head("cities"))
    assert there.head("cities") != here.head("cities")


def test_after_the_last_upload_no_progress_request_is_awaited(
    here: SyncNode, there: SyncNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with there.served() as base:
        here.push("cities", f"odf+{base}/cities")
        here.coordinator.push("cities", "Oslo", minute=9)
        monkeypatch.setattr(push_to_node, "GLANCE_SECONDS", 20.0)
        begun = time.monotonic()
        here.push("cities", f"odf+{base}/cities")
    assert time.monotonic() - begun < 5.0  # the next question comes after ten


def test_a_locally_lost_object_is_named(here: SyncNode, there: SyncNode) -> None:
    entry = here.catalog.by_alias("cities")
    assert entry is not None
    lost = next(here.blobs.names(entry.dataset_id, ObjectKind.DATA))
    here.blobs.remove(entry.dataset_id, ObjectKind.DATA, [lost])
    with there.served() as base, pytest.raises(NotFound, match=str(lost)):
        here.push("cities", f"odf+{base}/cities")
    assert there.head("cities") is None


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/x", "ftp://x/y", "odf+ftp://x"])
def test_other_locations_cannot_be_pushed_to(here: SyncNode, url: str) -> None:
    with pytest.raises(InvalidInput, match="odf\\+http"):
        here.push("cities", url)


UPGRADE = {"Connection": "keep-alive, Upgrade", "Upgrade": "WebSocket"}


@pytest.mark.parametrize("call", ["pull", "push"])
@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({}, "Connection header did not include 'upgrade'"),
        ({"Upgrade": "websocket"}, "Connection header did not include 'upgrade'"),
        ({"Connection": "upgrade"}, "`Upgrade` header did not include 'websocket'"),
        ({**UPGRADE, "Upgrade": "h2c"}, "`Upgrade` header did not include 'websocket'"),
        (UPGRADE, "Header of type `x-odf-smtp-version` was missing"),
        ({**UPGRADE, "x-odf-smtp-version": "one"}, "invalid HTTP header (x-odf-smtp-version)"),
        ({**UPGRADE, "x-odf-smtp-version": "2"}, '{"message":"Incompatible client version"}'),
    ],
)
def test_a_request_without_an_upgrade_to_this_version_is_refused(
    here: SyncNode, call: str, headers: dict[str, str], text: str
) -> None:
    with here.served() as base:
        answer = urllib3.request("GET", f"{base}/cities/{call}", headers=headers, retries=False)
    assert (answer.status, answer.data.decode()) == (400, text)


def test_an_exchange_leaves_no_error_in_the_log(
    here: SyncNode, there: SyncNode, caplog: pytest.LogCaptureFixture
) -> None:
    with there.served() as base:
        here.push("cities", f"odf+{base}/cities")
        SyncNode(here.settings.home.with_name("third")).pull(f"odf+{base}/cities", "cities")
    assert [one.message for one in caplog.records if one.levelname == "ERROR"] == []


def test_blocks_that_are_sent_in_many_pieces_arrive_whole(
    here: SyncNode, there: SyncNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "PIECE_BYTES", 100)
    with here.served() as base:
        there.pull(f"odf+{base}/cities", "cities")
    assert there.content("cities") == here.content("cities")


def test_a_dataset_without_a_first_block_is_not_found_by_a_pull(there: SyncNode) -> None:
    there.catalog.add(CatalogEntry(alias="cities", dataset_id=a_dataset()))
    headers = {**UPGRADE, VERSION_HEADER: str(VERSION), "Sec-WebSocket-Version": "13"}
    with there.served() as base:
        answer = urllib3.request("GET", f"{base}/cities/pull", headers=headers, retries=False)
    assert answer.status == 404
