"""Takes in a chain that another node pushed: its objects are stored already, and are checked before the head moves."""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from odf_common.codec.flatbuffers import block_hash, decode_block
from odf_common.errors import HeadMoved, InvalidInput, NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.identity.branch_names import HEAD
from odf_common.identity.did import DatasetId
from odf_common.ports.store import ObjectKind
from odf_common.service.environment import Environment
from odf_common.service.request_reply import Replies
from odf_sync.transfer.compare import admit_all
from odf_sync.transfer.objects import RemoteObject, by_object, check_stored, declared_objects
from odf_sync.transfer.pull import LocalCopy, check_identity, commit
from odf_sync.transfer.remote_blocks import RemoteBlock

SOURCE: Final = "the node that pushes"
CHECKS: Final = 2  # objects at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedChain:
    """Blocks for the dataset with a name, by hash and oldest first; `head` is the one that they were made for."""

    alias: str
    head: Multihash | None
    blocks: Mapping[Multihash, bytes]
    is_forced: bool
    """Replace the chain, from the first of the blocks on."""


def accept(env: Environment, replies: Replies, chain: PushedChain) -> None:
    """Move the head to the last block.

    On errors nothing has moved: `InvalidInput`, also for an object that was not sent, `ChainRuleViolated`,
    `ObjectDiffers`, `RecordsRefused`, `HeadMoved`, `AlreadyExists`.
    """
    entry = env.catalog.by_alias(chain.alias)
    here = None if entry is None else env.states.current(entry.dataset_id)
    if (here and here.head) != chain.head:
        actual = None if here is None else str(here.head)
        raise HeadMoved(dataset=chain.alias, expected=str(chain.head), actual=actual)
    blocks = _Blocks(chain.blocks)
    after = next(iter(blocks)).decoded.block.prev_block_hash
    if after != chain.head and not chain.is_forced:
        raise InvalidInput(text=f"they do not follow the head {chain.head}", where="the blocks")
    past = None if entry is None or after is None else env.states.state_at(entry.dataset_id, after)
    state = admit_all(past, blocks)
    check_identity(env, state.dataset_id, chain.alias)
    _check_objects(env, state.dataset_id, by_object(declared_objects(past, blocks)))
    for name, raw in chain.blocks.items():
        env.blobs.put(state.dataset_id, ObjectKind.BLOCK, name, raw)
    copy = LocalCopy(name=chain.alias, ref=HEAD, here=here, is_forced=chain.is_forced)
    commit(env, replies, state, copy)


class _Blocks(Iterable[RemoteBlock]):
    """Decodes blocks as they are taken; raises `InvalidInput` for one that does not match its hash."""

    def __init__(self, blocks: Mapping[Multihash, bytes]) -> None:
        self._blocks = blocks

    def __iter__(self) -> Iterator[RemoteBlock]:
        for name, raw in self._blocks.items():
            actual = block_hash(raw)
            if actual != name:
                raise InvalidInput(text=f"its bytes hash to {actual}", where=f"block {name}")
            yield RemoteBlock(hash=name, raw=raw, decoded=decode_block(raw))


def _check_objects(env: Environment, dataset: DatasetId, wanted: Iterable[tuple[RemoteObject, ...]]) -> None:
    with ThreadPoolExecutor(CHECKS, thread_name_prefix="check") as pool:
        checks = [pool.submit(check_stored, env, SOURCE, dataset, one) for one in wanted]
        try:
            for one in checks:
                one.result()
        except NotFound as error:
            raise InvalidInput(text=f"not sent: {error.what.removeprefix('object ')}") from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
