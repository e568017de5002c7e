"""Derivatives are copied without data that the repository does not have; the receiver recomputes it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from odf_testing.chains import flip
from odf_testing.story import derivative, root
from odf_testing.sync_node import SyncNode
from odf_testing.webserver import Page, Request, serving_answers

from odf_common.chain.walk import blocks_between
from odf_common.codec.envelopes import Body, envelope
from odf_common.dataset.dataset_notes import DROPPED, complete_until, dropped_blocks
from odf_common.errors import HeadMoved, NotFound, OdfError, Refused, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import ExecuteTransform
from odf_common.ports.store import ObjectKind
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_coordinator.operations.pull import PullProgress
from odf_coordinator.storage import is_dropped, was_dropped
from odf_sync.transfer.objects import ObjectDiffers
from odf_sync.transfer.push_source import DataNotHere

ROOT, COPIED = "cities", "cities.copy"


@pytest.fixture
def source(tmp_path: Path) -> SyncNode:
    """A node with a root of three slices and its derivative, three steps long."""
    node = SyncNode(tmp_path / "source")
    columns = ["event_time TIMESTAMP", "city STRING"]
    query = derivative(COPIED, {ROOT: ROOT}, "SELECT event_time, city FROM cities")
    node.coordinator.add(yaml.safe_dump(root(ROOT, columns)), yaml.safe_dump(query))
    for minute, city in enumerate(("Kyiv", "Quito", "Oslo")):
        grow(node, city, minute)
    return node


@pytest.fixture
def copy(tmp_path: Path) -> SyncNode:
    return SyncNode(tmp_path / "copy")


@pytest.fixture
def folder(source: SyncNode, tmp_path: Path) -> Path:
    """A folder with the derivative and its data."""
    source.push(COPIED, (tmp_path / "shared").as_uri())
    return tmp_path / "shared"


def grow(node: SyncNode, city: str, minute: int) -> None:
    node.coordinator.push(ROOT, city, minute=minute)
    node.coordinator.work()


def extend_without_data(source: SyncNode, folder: Path) -> None:
    """Add records, and push them to a folder, which then loses their slice."""
    grow(source, "Lima", 3)
    source.push(COPIED, folder.as_uri())
    (folder / "data" / str(slices(source)[-1])).unlink()


def id_of(node: SyncNode, alias: str = COPIED) -> DatasetId:
    return node.coordinator.find(alias).id


def objects(node: SyncNode) -> dict[tuple[ObjectKind, str], bytes]:
    return {key: raw for key, raw in node.content(COPIED).items() if key[0] is not ObjectKind.BLOCK}


def rebuild(node: SyncNode) -> PullProgress:
    puller = node.coordinator.puller
    with node.coordinator.scheduler_running():
        return list(puller.pull([COPIED], is_all=False, is_recursive=False, is_wanted=lambda: True))[-1]


def slices(node: SyncNode) -> list[Multihash]:
    """Return the slices that the derivative's chain declares, oldest first."""
    known = node.coordinator.find(COPIED)
    links = blocks_between(node.coordinator.datasets.reader(known.id), known.state.head, None)
    events = (decoded.block.event for _, decoded, _ in links)
    return [
        one.new_data.physical_hash for one in events if isinstance(one, ExecuteTransform) and one.new_data
    ]


@pytest.mark.parametrize("scheme", ["", "odf+"], ids=["simple", "smart"])
def test_a_derivative_without_data_is_copied_and_computed_bit_for_bit(
    source: SyncNode, copy: SyncNode, scheme: str
) -> None:
    before = objects(source)
    source.coordinator.dropper.drop(COPIED)
    with source.served() as base:
        last = copy.pull(f"{scheme}{base}/{COPIED}", COPIED)[-1]
        known = copy.coordinator.find(COPIED)
        assert (last.state, last.head, last.missing_objects) == ("updated", source.head(COPIED), len(before))
        assert last.missing_inputs == (f"{id_of(source, ROOT)} ({ROOT})",)
        assert was_dropped(copy.coordinator.datasets, known)

        assert copy.pull(f"{scheme}{base}/{ROOT}", ROOT)[-1].state == "updated"
        again = copy.pull(f"{scheme}{base}/{COPIED}", COPIED)[-1]

    assert (again.state, again.missing_objects, again.missing_inputs) == ("up-to-date", len(before), ())
    assert objects(copy) == {}
    assert rebuild(copy).state == "rebuilt"
    assert objects(copy) == before
    assert dropped_blocks(copy.blobs, id_of(copy)) is None


@contextmanager
def serving_without_listing(folder: Path, *, names_s3: bool) -> Iterator[str]:
    """Serve the files of a folder as a bucket without s3:ListBucket does: 403 for all that does not exist."""
    headers = {"Content-Type": "application/xml", **({"x-amz-request-id": "1"} if names_s3 else {})}
    refusal = Page(status=403, body=b"<Error><Code>AccessDenied</Code></Error>", headers=headers)

    def answer(request: Request) -> Page:
        file = folder / request.path.partition("?")[0].lstrip("/")
        return Page(body=file.read_bytes(), headers=headers) if file.is_file() else refusal

    with serving_answers(answer) as base:
        yield base


@pytest.mark.parametrize(("scheme", "names_s3"), [("", True), ("", False), ("s3+", True)])
def test_access_that_is_denied_to_files_of_a_readable_dataset_means_that_they_may_be_missing(
    source: SyncNode, copy: SyncNode, tmp_path: Path, scheme: str, names_s3: bool
) -> None:
    source.push(COPIED, (tmp_path / "shared").as_uri())
    shutil.rmtree(tmp_path / "shared" / "data")
    source.push(ROOT, (tmp_path / "root").as_uri())
    shutil.rmtree(tmp_path / "root" / "data")
    with serving_without_listing(tmp_path, names_s3=names_s3) as base:
        place = f"{scheme}{base}"
        last = copy.pull(f"{place}/shared", COPIED)[-1]
        with pytest.raises(
            NotFound, match=r"root/data/f1620[0-9a-f]+ does not exist, or may not be read"
        ) as lost:
            copy.pull(f"{place}/root", ROOT)
        with pytest.raises(Unavailable, match=r"denie[sd]|requires a login"):
            copy.pull(f"{place}/nothing", "nothing")

    assert (last.state, last.missing_objects) == ("updated", 3)
    assert "s3:ListBucket" in lost.value.advice()


def test_data_that_the_repository_has_again_is_fetched(
    source: SyncNode, copy: SyncNode, folder: Path
) -> None:
    (folder / "data").rename(folder / "kept")
    assert copy.pull(folder.as_uri(), COPIED)[-1].missing_objects == 3
    assert complete_until(copy.blobs, id_of(copy)) is None
    (folder / "kept").rename(folder / "data")

    assert copy.pull(folder.as_uri(), COPIED)[-1].state == "restored"

    assert objects(copy) == objects(source)
    assert dropped_blocks(copy.blobs, id_of(copy)) is None
    assert complete_until(copy.blobs, id_of(copy)) == copy.head(COPIED)


def test_data_that_was_lost_on_both_nodes_is_rebuilt(source: SyncNode, copy: SyncNode, folder: Path) -> None:
    copy.pull(folder.as_uri(), COPIED)
    with source.served() as base:
        copy.pull(f"{base}/{ROOT}", ROOT)
    before, newest = objects(copy), slices(source)[-1]
    copy.blobs.remove(id_of(copy), ObjectKind.DATA, [newest])
    (folder / "data" / str(newest)).unlink()

    last = copy.pull(folder.as_uri(), COPIED, rechecks=True)[-1]

    assert (last.state, last.missing_objects) == ("up-to-date", 1)
    assert is_dropped(copy.coordinator.datasets, copy.coordinator.find(COPIED))
    assert rebuild(copy).state == "rebuilt"
    assert objects(copy) == before


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_available_data_is_fetched_but_the_newest_slice_stands_for_all(
    source: SyncNode, copy: SyncNode, folder: Path, lost: int
) -> None:
    names = slices(source)
    (folder / "data" / str(names[lost])).unlink()
    with source.served() as base:
        copy.pull(f"{base}/{ROOT}", ROOT)

    missing = copy.pull(folder.as_uri(), COPIED)[-1].missing_objects

    here = set(copy.blobs.names(id_of(copy), ObjectKind.DATA))
    assert here == set(names[:2]) - {names[lost]}
    assert missing == 3 - len(here)
    assert is_dropped(copy.coordinator.datasets, copy.coordinator.find(COPIED))
    assert rebuild(copy).state == "rebuilt"
    assert objects(copy) == objects(source)


def test_blocks_with_data_after_blocks_without_it_are_pulled_without_their_newest_slice(
    source: SyncNode, copy: SyncNode, folder: Path, tmp_path: Path
) -> None:
    for name in slices(source):
        (folder / "data" / str(name)).unlink()
    copy.pull(folder.as_uri(), COPIED)
    grow(source, "Lima", 3)
    source.push(COPIED, folder.as_uri())

    last = copy.pull(folder.as_uri(), COPIED)[-1]

    assert (last.state, last.new_blocks, last.missing_objects) == ("updated", 1, 4)
    assert was_dropped(copy.coordinator.datasets, copy.coordinator.find(COPIED))
    whole = tmp_path / "whole"
    source.push(COPIED, whole.as_uri())
    shutil.copytree(whole / "data", folder / "data", dirs_exist_ok=True)
    grow(source, "Bonn", 4)
    source.push(COPIED, folder.as_uri())
    assert copy.pull(folder.as_uri(), COPIED)[-1].missing_objects == 0
    assert objects(copy) == objects(source)
    assert dropped_blocks(copy.blobs, id_of(copy)) is None


def test_a_copy_with_data_is_extended_by_blocks_without_it(
    source: SyncNode, copy: SyncNode, folder: Path
) -> None:
    copy.pull(folder.as_uri(), COPIED)
    extend_without_data(source, folder)
    with source.served() as base:
        copy.pull(f"{base}/{ROOT}", ROOT)

    assert copy.pull(folder.as_uri(), COPIED)[-1].missing_objects == 1

    assert rebuild(copy).state == "rebuilt"
    assert objects(copy) == objects(source)


def test_different_data_is_refused_even_if_other_data_is_missing(copy: SyncNode, folder: Path) -> None:
    one, other, *_ = sorted((folder / "checkpoints").iterdir())
    one.unlink()
    flip(other)

    with pytest.raises(ObjectDiffers):
        copy.pull(folder.as_uri(), COPIED)

    assert copy.catalog.by_alias(COPIED) is None


def test_a_root_without_data_is_refused(source: SyncNode, copy: SyncNode, tmp_path: Path) -> None:
    folder = tmp_path / "root"
    source.push(ROOT, folder.as_uri())
    next((folder / "data").iterdir()).unlink()

    with pytest.raises(NotFound, match="data/"):
        copy.pull(folder.as_uri(), ROOT)

    assert copy.catalog.by_alias(ROOT) is None


def test_another_reference_is_not_moved_to_a_chain_without_data(
    source: SyncNode, copy: SyncNode, folder: Path
) -> None:
    copy.pull(folder.as_uri(), COPIED)
    extend_without_data(source, folder)

    with pytest.raises(NotFound, match="data/"):
        copy.pull(folder.as_uri(), f"{COPIED}@theirs")

    assert copy.refs.head(id_of(copy), "theirs") is None
    assert dropped_blocks(copy.blobs, id_of(copy)) is None


def test_a_pull_that_was_killed_after_its_marker_leaves_none_once_the_data_arrives(
    source: SyncNode, copy: SyncNode, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    (folder / "data").rename(folder / "kept")
    with monkeypatch.context() as patch:
        patch.setattr(copy, "request", killed)
        with pytest.raises(KeyboardInterrupt):
            copy.pull(folder.as_uri(), COPIED)
    (folder / "kept").rename(folder / "data")

    assert copy.pull(folder.as_uri(), COPIED)[-1].missing_objects == 0

    assert objects(copy) == objects(source)
    assert complete_until(copy.blobs, id_of(copy)) == source.head(COPIED)


@pytest.mark.parametrize(
    ("answer", "raised"),
    [
        (bus.Refused(code="x", text="refused"), Refused),
        (bus.HeadMoved(head=b"\x16\x20" + bytes(32)), HeadMoved),
    ],
    ids=["refused", "overtaken"],
)
def test_a_pull_that_is_refused_removes_its_marker(
    source: SyncNode, copy: SyncNode, folder: Path, answer: Body, raised: type[OdfError]
) -> None:
    copy.pull(folder.as_uri(), COPIED)
    extend_without_data(source, folder)
    copy.request = lambda _, dataset, *__, **___: envelope(dataset, answer)  # type: ignore[method-assign]
    with pytest.raises(raised):
        copy.pull(folder.as_uri(), COPIED)
    assert dropped_blocks(copy.blobs, id_of(copy)) is None
    assert complete_until(copy.blobs, id_of(copy)) == copy.head(COPIED)


def test_a_pull_without_a_reply_leaves_its_marker(
    source: SyncNode, copy: SyncNode, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head may have moved."""
    copy.pull(folder.as_uri(), COPIED)
    extend_without_data(source, folder)
    monkeypatch.setattr(copy, "request", lambda *_, **__: None)
    with pytest.raises(Unavailable, match="no reply"):
        copy.pull(folder.as_uri(), COPIED)
    assert dropped_blocks(copy.blobs, id_of(copy)) is not None


def test_after_an_update_lost_data_is_still_searched_for_if_the_marker_cannot_be_read(
    source: SyncNode, copy: SyncNode, folder: Path
) -> None:
    copy.pull(folder.as_uri(), COPIED)
    copy.blobs.remove(id_of(copy), ObjectKind.DATA, slices(source)[:1])
    copy.blobs.set_note(id_of(copy), DROPPED, "no hash")
    grow(source, "Lima", 3)
    source.push(COPIED, folder.as_uri())
    assert copy.pull(folder.as_uri(), COPIED)[-1].state == "updated"

    assert copy.pull(folder.as_uri(), COPIED)[-1].state == "restored"

    assert objects(copy) == objects(source)


def test_dropped_data_is_left_out_of_a_folder(source: SyncNode, copy: SyncNode, tmp_path: Path) -> None:
    before, url = objects(source), (tmp_path / "shared").as_uri()
    source.coordinator.dropper.drop(COPIED)

    pushed = source.push(COPIED, url)[-1]

    assert (pushed.state, pushed.head, pushed.missing_objects) == (
        "updated",
        source.head(COPIED),
        len(before),
    )
    assert not (tmp_path / "shared" / "data").exists()
    with source.served() as base:
        copy.pull(f"{base}/{ROOT}", ROOT)
    assert copy.pull(url, COPIED)[-1].missing_objects == len(before)
    rebuild(copy)
    assert objects(copy) == before
    copied = copy.push(COPIED, (tmp_path / "again").as_uri())[-1]
    assert (copied.state, copied.missing_objects) == ("updated", 0)
    assert SyncNode(tmp_path / "third").pull((tmp_path / "again").as_uri(), COPIED)[-1].missing_objects == 0


def test_a_copy_without_data_is_pushed_without_it(source: SyncNode, copy: SyncNode, tmp_path: Path) -> None:
    source.coordinator.dropper.drop(COPIED)
    with source.served() as base:
        missing = copy.pull(f"{base}/{COPIED}", COPIED)[-1].missing_objects

    assert copy.push(COPIED, (tmp_path / "shared").as_uri())[-1].missing_objects == missing


def test_lost_data_is_not_left_out(source: SyncNode, tmp_path: Path) -> None:
    source.blobs.remove(id_of(source), ObjectKind.DATA, slices(source)[:1])

    with pytest.raises(NotFound):
        source.push(COPIED, (tmp_path / "shared").as_uri())

    assert not (tmp_path / "shared" / "refs").exists()


def test_another_node_takes_a_derivative_only_with_its_data(source: SyncNode, copy: SyncNode) -> None:
    source.coordinator.dropper.drop(COPIED)
    with copy.served() as base:
        with pytest.raises(DataNotHere, match=r"data of cities\.copy is missing here") as caught:
            source.push(COPIED, f"odf+{base}/{COPIED}")
        assert copy.catalog.by_alias(COPIED) is None
        assert "`odf pull cities.copy` recomputes it" in caught.value.advice()
        rebuild(source)

        assert source.push(COPIED, f"odf+{base}/{COPIED}")[-1].state == "updated"
        assert objects(copy) == objects(source)

        grow(source, "Lima", 3)
        source.coordinator.dropper.drop(COPIED)
        with pytest.raises(DataNotHere):
            source.push(COPIED, f"odf+{base}/{COPIED}")
        assert source.head(COPIED) != copy.head(COPIED)
