"""Which blocks a spool requests from a repository, how, and what it keeps of them."""

import errno
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Any, cast

import pytest
from odf_testing.builders import a_chain, a_seed

from odf_common.errors import InvalidInput, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import SetInfo
from odf_sync.repositories.remote_dataset import frame_block
from odf_sync.transfer import remote_chain
from odf_sync.transfer.remote_chain import BlockSpool, RemoteBlocks

CHAIN = a_chain(a_seed(), *(SetInfo(description=text) for text in "abc"))
FIRST, SECOND, THIRD, LAST = (block.hash for block in CHAIN.blocks)
RAW = CHAIN.store
LOST = Unavailable(what="http://x", why="the connection was lost")
Pack = Sequence[bytes | Exception]


class There:
    """A repository that responds with `packs`, one after another, and records its requests."""

    url = "http://x"

    def __init__(self, *packs: Pack) -> None:
        self.packs = list(packs)
        self.blocks = dict(RAW)
        self.stored: Pack = ()
        self.asked: list[tuple[str, Multihash]] = []
        self.ended = self.closed = 0

    def pack(self, name: Multihash, after: Multihash | None) -> Iterator[bytes]:
        assert after == FIRST
        self.asked.append(("pack", name))
        return self._sent(self.packs.pop(0) if self.packs else ())

    def stored_blocks(self, name: Multihash, after: Multihash | None) -> Iterator[bytes]:
        assert after == FIRST
        self.asked.append(("stored", name))
        return self._sent(self.stored)

    def block(self, name: Multihash) -> bytes:
        self.asked.append(("block", name))
        return self.blocks[name]

    def _sent(self, pack: Pack) -> Iterator[bytes]:
        try:
            for one in pack:
                if isinstance(one, Exception):
                    raise one
                yield one
            self.ended += 1
        finally:
            self.closed += 1


def spool(there: There, file: BytesIO | None = None) -> BlockSpool:
    return BlockSpool(cast("Any", there), after=FIRST, file=file)


def test_blocks_are_read_from_a_pack_while_it_has_the_next_one() -> None:
    there = There([RAW[LAST], RAW[THIRD]], [RAW[FIRST]])
    blocks = spool(there)
    assert [blocks.read(name) for name in (LAST, THIRD, LAST)] == [RAW[LAST], RAW[THIRD], RAW[LAST]]
    assert there.asked == [("pack", LAST)]
    assert blocks.read(SECOND) == RAW[SECOND]
    assert blocks.read(FIRST) == RAW[FIRST]
    assert there.asked[1:] == [("pack", SECOND), ("block", SECOND), ("block", FIRST)], "no third pack"


@pytest.mark.parametrize("error", [LOST, InvalidInput(text="it ends within an entry", where="pack")])
def test_an_interrupted_pack_is_followed_by_another(error: Exception) -> None:
    there = There([RAW[LAST], error], [RAW[THIRD], RAW[SECOND]])
    blocks = spool(there)
    assert [blocks.read(name) for name in (LAST, THIRD, SECOND)] == [RAW[LAST], RAW[THIRD], RAW[SECOND]]
    assert there.asked == [("pack", LAST), ("pack", THIRD)]


def test_a_block_with_other_bytes_is_read_as_stored_while_the_repository_has_such() -> None:
    there = There()
    there.blocks = dict.fromkeys(RAW, b"other")
    there.stored = [RAW[LAST], RAW[THIRD]]
    blocks = spool(there)
    assert [blocks.read(name) for name in (LAST, THIRD)] == [RAW[LAST], RAW[THIRD]]
    assert there.asked == [("pack", LAST), ("block", LAST), ("stored", LAST)]
    there.stored = ()
    assert [blocks.read(name) for name in (SECOND, FIRST)] == [b"other", b"other"]
    assert there.asked[3:] == [("block", SECOND), ("stored", SECOND), ("block", FIRST)]


def test_blocks_of_an_earlier_attempt_are_not_fetched_again_and_truncated_ones_are() -> None:
    file = BytesIO()
    before = spool(There(), file)
    for name in (LAST, THIRD):
        before.read(name)
    assert file.getvalue() == frame_block(RAW[LAST]) + frame_block(RAW[THIRD])
    file.truncate(len(file.getvalue()) - 1)

    there = There()
    blocks = spool(there, file)
    assert file.getvalue() == frame_block(RAW[LAST])
    assert [blocks.read(name) for name in (LAST, THIRD)] == [RAW[LAST], RAW[THIRD]]
    assert there.asked == [("pack", THIRD), ("block", THIRD)]
    assert file.getvalue() == frame_block(RAW[LAST]) + frame_block(RAW[THIRD])


def test_the_first_requested_names_are_known_in_that_order() -> None:
    blocks = spool(There([RAW[LAST], RAW[THIRD], RAW[SECOND]]))
    for name in (LAST, THIRD, LAST, SECOND):
        blocks.read(name)
    assert blocks.fetched_names(2) == (LAST, THIRD)
    assert blocks.fetched_names(9) == (LAST, THIRD, SECOND)
    assert blocks.fetched_names(0) == ()


def test_a_spool_has_limits_of_bytes_and_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(RAW[LAST]) + len(RAW[THIRD])
    monkeypatch.setattr(remote_chain, "BYTES_LIMIT", size)
    monkeypatch.setattr(remote_chain, "COUNT_LIMIT", 2)
    blocks = spool(There())
    for name in (LAST, THIRD):
        blocks.read(name)
    monkeypatch.setattr(remote_chain, "BYTES_LIMIT", size + len(RAW[SECOND]))
    with pytest.raises(InvalidInput, match="more than 2 blocks"):
        blocks.read(SECOND)
    monkeypatch.setattr(remote_chain, "COUNT_LIMIT", 3)
    monkeypatch.setattr(remote_chain, "BYTES_LIMIT", size + len(RAW[SECOND]) - 1)
    with pytest.raises(InvalidInput, match=f"more than {size + len(RAW[SECOND]) - 1} bytes"):
        blocks.read(SECOND)


@pytest.mark.parametrize("rest", [[], [LOST]])
def test_a_response_whose_blocks_were_all_read_is_read_to_its_end(rest: Pack) -> None:
    there = There([RAW[LAST], *rest])
    blocks = spool(there)
    blocks.read(LAST)
    assert there.ended == 0
    blocks.close()
    assert there.ended == (0 if rest else 1)


def test_a_response_with_more_blocks_is_closed() -> None:
    there = There([RAW[LAST], RAW[THIRD], RAW[SECOND]])
    blocks = spool(there)
    blocks.read(LAST)
    assert there.closed == 0
    blocks.close()
    assert (there.ended, there.closed) == (0, 1)
    assert blocks.read(LAST) == RAW[LAST]


def test_a_block_that_the_disk_does_not_take_is_not_kept() -> None:
    class Full(BytesIO):
        is_full = True

        def write(self, content: Any) -> int:
            if self.is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(content)

    file = Full()
    blocks = spool(There(), file)
    with pytest.raises(OSError, match="No space"):
        blocks.read(LAST)
    file.is_full = False
    assert blocks.read(LAST) == RAW[LAST]
    assert file.getvalue() == frame_block(RAW[LAST])


def test_remote_blocks_are_a_sequence_of_decoded_blocks() -> None:
    names = (SECOND, THIRD, LAST)
    blocks = RemoteBlocks(spool(There()), names)
    assert len(blocks) == 3
    assert [block.hash for block in blocks] == list(names)
    assert [block.decoded.block.sequence_number for block in blocks[1:]] == [2, 3]
    assert list(blocks.raw()) == [(name, RAW[name]) for name in names]
