"""Small objects of a push come in its exchange, over real sockets: checked as uploads are, and continued as such."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

import pytest
from odf_testing.cutting_proxy import cutting_proxy, drawn_cut
from odf_testing.sync_node import SyncNode

from odf_common.errors import OdfError, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.ports.store import ObjectKind
from odf_sync.access import rate_limits
from odf_sync.http.smart_protocol import inline_objects, routes
from odf_sync.http.smart_protocol.routes import SmartProtocol
from odf_sync.repositories.http_dataset import HttpDataset, UnexpectedStatus
from odf_sync.smart.connection import Connection
from odf_sync.smart.exchange import TransferRefused
from odf_sync.smart.messages import (
    CONTINUES,
    CONTINUES_HEADER,
    MAX_INLINE_OBJECTS,
    ObjectFile,
    ObjectType,
    Upload,
)
from odf_sync.transfer.push import push_to_node
from odf_sync.transfer.push.upload import Uploader

SOURCE: Final = random.Random(69)
SLICE_BYTES: Final = 400_000  # at least, of each of two
TWICE: Final = 0.02
HANDSHAKES: Final = 8 * 1024  # requests and answers of another attempt
Change = Callable[[list[bytes]], list[bytes]]
PARTS: Final = 6  # of the stream, each with a cut of its own


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> SyncNode:
    """A node with a dataset of few blocks, and two slices that cannot be compressed."""
    node = SyncNode(tmp_path_factory.mktemp("here"))
    node.add_cities()
    for minute in range(2):
        cities = (SOURCE.randbytes(32).hex() for _ in range(SLICE_BYTES // 32))
        node.coordinator.push("cities", *cities, minute=minute)
    return node


@pytest.fixture
def there(tmp_path: Path) -> SyncNode:
    return SyncNode(tmp_path / "there")


@pytest.fixture
def url(there: SyncNode) -> Iterator[str]:
    with there.served() as base:
        yield f"odf+{base}/cities"


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> list[Multihash]:
    """The objects that are uploaded by requests of their own."""
    uploaded: list[Multihash] = []
    send = Uploader.send

    def recorded(self: Uploader, upload: Upload) -> None:
        uploaded.append(upload.object_file.physical_hash)
        send(self, upload)

    monkeypatch.setattr(Uploader, "send", recorded)
    return uploaded


def kept(node: SyncNode) -> list[int]:
    """Return the sizes of what has arrived of objects that are not complete."""
    return sorted(file.stat().st_size for file in (node.settings.home / "uploads").glob("*"))


def names(node: SyncNode) -> list[Multihash]:
    entry = node.catalog.by_alias("cities")
    assert entry is not None
    return list(node.blobs.names(entry.dataset_id, ObjectKind.DATA))


def test_small_objects_come_in_the_exchange(
    here: SyncNode, there: SyncNode, url: str, uploads: list[Multihash]
) -> None:
    *_, last = here.push("cities", url)

    assert (last.state, uploads, kept(there)) == ("updated", [], [])
    assert there.content("cities") == here.content("cities")


def test_objects_that_are_larger_together_are_uploaded(
    here: SyncNode, there: SyncNode, url: str, uploads: list[Multihash], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "MAX_INLINE_BYTES", 2 * SLICE_BYTES - 1)
    here.push("cities", url)
    assert sorted(uploads, key=str) == sorted(names(here), key=str)
    assert there.content("cities") == here.content("cities")


@pytest.mark.parametrize("part", range(PARTS))
def test_an_object_that_was_cut_off_is_continued_by_an_upload(
    here: SyncNode, tmp_path: Path, part: int
) -> None:
    """The best of three attempts counts: a cut loses what a server that got no processor has not read yet."""
    sent: list[int] = []
    total = sum(len(content) for content in here.content("cities").values())
    for attempt in range(3):
        there = SyncNode(tmp_path / str(attempt))
        with there.served() as base, cutting_proxy(base) as proxy:
            proxy.cut_after(drawn_cut(part, PARTS, total))
            with suppress(OdfError):
                here.push("cities", f"odf+{proxy.url}/cities")
            assert there.head("cities") is None
            proxy.restore()
            here.push("cities", f"odf+{proxy.url}/cities")
            sent.append(proxy.to_server)
        assert (kept(there), there.content("cities")) == ([], here.content("cities"))
        if sent[-1] <= total * (1 + TWICE) + 2 * HANDSHAKES + 16 * 1024:
            return
    raise AssertionError(f"{sent} bytes were sent for {total}")


def test_objects_that_have_been_cut_off_between_two_of_them_are_not_sent_again(
    tmp_path: Path, there: SyncNode, uploads: list[Multihash], monkeypatch: pytest.MonkeyPatch
) -> None:
    node, sent = SyncNode(tmp_path / "many"), list[bytes]()
    node.add_cities(*([f"city {number}"] for number in range(MAX_INLINE_OBJECTS)))
    send = Connection.send_bytes

    def cut(self: Connection, content: bytes) -> None:
        if len(sent) == MAX_INLINE_OBJECTS - 2:
            raise Unavailable(what="the network")
        send(self, content)
        sent.append(content)

    with there.served() as base:
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "send_bytes", cut)
            with pytest.raises(Unavailable):
                node.push("cities", f"odf+{base}/cities")
        node.push("cities", f"odf+{base}/cities")
        assert (len(uploads), kept(there)) == (2, [])
        assert there.content("cities") == node.content("cities")
        uploads.clear()
        node.coordinator.push("cities", "Oslo", minute=59)
        node.push("cities", f"odf+{base}/cities")
    assert len(uploads) == 1, "for an hour"


@pytest.mark.parametrize("is_forced", [False, True])
def test_more_objects_and_those_of_a_replaced_chain_are_uploaded(
    tmp_path: Path, there: SyncNode, url: str, uploads: list[Multihash], *, is_forced: bool
) -> None:
    node = SyncNode(tmp_path / "many")
    count = 1 if is_forced else MAX_INLINE_OBJECTS + 1
    node.add_cities(*([f"city {number}"] for number in range(count)))
    node.push("cities", url, is_forced=is_forced)
    assert len(uploads) == count
    assert there.content("cities") == node.content("cities")


def test_a_server_that_does_not_offer_it_is_sent_nothing_in_the_exchange(
    tmp_path: Path, there: SyncNode, url: str, uploads: list[Multihash], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SmartProtocol, "_offered", lambda *_: {CONTINUES_HEADER: CONTINUES})
    node = SyncNode(tmp_path / "here")
    node.add_cities(["Kyiv"])
    node.push("cities", url)
    assert len(uploads) == 1
    empty = ObjectFile(object_type=ObjectType.CHECKPOINT, physical_hash=names(node)[0], size=0)
    assert push_to_node._inline_objects(cast("Any", None), (empty,), 0) is None


def test_a_push_to_another_head_is_refused_while_its_objects_are_on_the_way(
    here: SyncNode, there: SyncNode, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.add_cities(["Lima"])
    monkeypatch.setattr(HttpDataset, "head_by", lambda *_: None)
    with pytest.raises(TransferRefused, match="its head is f1620") as refused:
        here.push("cities", url)
    assert "pull it, and push again" in refused.value.advice()
    assert kept(there) == []


def tiny_messages(self: Connection, content: bytes) -> None:
    for byte in content[:10]:
        self._run(self._channel.send_bytes(bytes([byte])))


def test_messages_of_a_few_bytes_are_refused(
    here: SyncNode, there: SyncNode, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "send_bytes", tiny_messages)
    with pytest.raises(TransferRefused, match="too few bytes of an object"):
        here.push("cities", url)
    assert kept(there) == []


def doubled(objects: list[bytes]) -> list[bytes]:
    return [one + one for one in objects]


def reversed_bytes(objects: list[bytes]) -> list[bytes]:
    return [one[::-1] for one in objects]


def shortened(objects: list[bytes]) -> list[bytes]:
    return [*objects[:-1], objects[-1][:-1]]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (doubled, "more bytes than the object has"),
        (reversed_bytes, "an object does not match its hash"),
        (shortened, "expected bytes of an object, got text"),
    ],
)
def test_other_bytes_are_refused(
    here: SyncNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change, why: str
) -> None:
    there = SyncNode(tmp_path)
    read = push_to_node._inline_objects
    with there.served() as base:
        with monkeypatch.context() as patch:
            patch.setattr(push_to_node, "_inline_objects", lambda *given: change(read(*given) or []))
            with pytest.raises(TransferRefused, match=why):
                here.push("cities", f"odf+{base}/cities")
            assert (there.head("cities"), kept(there)) == (None, [])

        here.push("cities", f"odf+{base}/cities")
    assert there.content("cities") == here.content("cities")


def test_more_bytes_than_offered_are_refused_before_they_are_read(
    here: SyncNode, there: SyncNode, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline_objects, "MAX_INLINE_BYTES", SLICE_BYTES)
    with pytest.raises(TransferRefused, match="too many objects, or bytes"):
        here.push("cities", url)
    assert kept(there) == []


def test_a_client_that_is_too_slow_is_refused_and_what_has_come_is_kept(
    here: SyncNode, there: SyncNode, url: str, monkeypatch: pytest.MonkeyPatch, uploads: list[Multihash]
) -> None:
    send = Connection.send_bytes

    def stopping(self: Connection, content: bytes) -> None:
        send(self, content[:-1])
        time.sleep(1)

    with monkeypatch.context() as patch:
        patch.setattr(rate_limits, "BODY_PAUSE_SECONDS", 0.2)
        patch.setattr(Connection, "send_bytes", stopping)
        with pytest.raises(TransferRefused, match="no byte of the body"):
            here.push("cities", url)
    (size,) = kept(there)

    here.push("cities", url)

    assert size > SLICE_BYTES
    assert len(uploads) == len(names(here))
    assert there.content("cities") == here.content("cities")


def test_a_damaged_object_is_named_as_by_an_upload(
    tmp_path: Path, there: SyncNode, url: str, uploads: list[Multihash]
) -> None:
    node = SyncNode(tmp_path / "damaged")
    node.add_cities(["Kyiv"])
    entry = node.catalog.by_alias("cities")
    assert entry is not None
    (name,) = names(node)
    path = node.blobs.local_path(entry.dataset_id, ObjectKind.DATA, name)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[::-1])

    with pytest.raises(UnexpectedStatus, match=str(name)):
        node.push("cities", url)

    assert uploads == [name]
    assert (there.head("cities"), kept(there)) == (None, [])
