"""How fast metadata chains are read, checked and written: blocks with data, all in memory, in CPU time of one core.

Rates are compared with what the node needs, long chains with a short one, memory with what a walk may use.
"""

import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial

from odf_testing.builders import (
    AChain,
    a_chain,
    a_push_source,
    a_schema,
    a_seed,
    a_slice,
    a_source_state,
    a_time,
)
from odf_testing.memory_store import MemoryBlobStore, MemoryRefStore

from odf_common.chain.build_blocks import build_blocks
from odf_common.chain.rules import admit
from odf_common.chain.state import ChainState
from odf_common.chain.walk import fold
from odf_common.codec.flatbuffers import block_hash, decode_block, encode_block
from odf_common.dataset.state_cache import ChainStates, state_from_bytes, state_to_bytes
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import AddData, SetInfo
from odf_common.ports.store import ObjectKind

Row = dict[str, str | float | None]
_BLOCKS = 10_000
_CHAINS = (1_000, 10_000, 100_000)
_SHORT = f"a chain of {_CHAINS[0]:,} blocks"
_ROUNDS = 3
_LOOKS = 200
_PURE = ("chain", "codec", "data", "errors", "hashing", "identity", "metadata", "ports")
_IMPORT = f"""
import importlib, pkgutil, time
names = []
for part in {_PURE!r}:
    found = importlib.util.find_spec("odf_common." + part)
    names += ["odf_common." + part]
    names += [one.name for one in pkgutil.walk_packages(found.submodule_search_locations or (), names[-1] + ".")]
begun = time.perf_counter()
for name in names:
    importlib.import_module(name)
print(time.perf_counter() - begun)
"""
_POSITION = '{"v":1,"topics":{"odf.push.sensors.default":{"id":"mVQf5vDnQd6zv1bTKOhmMw","next":{"0":%d}}}}'


def run() -> list[Row]:
    """Return the rows; takes about two minutes."""
    chain = _grown(a_chain(), _BLOCKS)
    return [
        *_single_steps(chain),
        *_verification(),
        *_memory(),
        *_last_event(),
        *_states(chain.state),
        _imports(),
    ]


def _single_steps(chain: AChain) -> list[Row]:
    raws = [block.raw for block in chain.blocks]
    blocks = [block.block for block in chain.blocks]
    chain.blocks.clear()
    encoding = _rate(len(raws), lambda: [encode_block(block) for block in blocks])
    blocks.clear()
    decoding = _rate(len(raws), lambda: [decode_block(raw) for raw in raws])
    admitting = _rate(len(raws), lambda: _admit_all(raws))
    return [
        _row("blocks: decode, hash, admit", admitting, "blocks/s", ("what a node needs", 6000), target=1.0),
        _row("blocks: decode", decoding, "blocks/s", ("what a node needs", 6000), target=1.0),
        _row("blocks: encode", encoding, "blocks/s", ("what a node needs", 6000), target=1.0),
    ]


def _verification() -> list[Row]:
    """Walk one chain from three of its blocks: after an untimed walk, the best of three each, in turn."""
    chain = a_chain()
    heads: dict[int, Multihash] = {}
    for size in _CHAINS:
        _grown(chain, size - len(chain.store))
        chain.blocks.clear()
        heads[size] = chain.state.head
    fold(chain.read, heads[_CHAINS[0]])
    best = dict.fromkeys(_CHAINS, 0.0)
    for _ in range(_ROUNDS):
        for size, head in heads.items():
            best[size] = max(best[size], _rate(size, partial(fold, chain.read, head), repeat=1))
    short = best[_CHAINS[0]]
    return [
        _row(
            f"verify the metadata of {size:,} blocks",
            rate,
            "blocks/s",
            (_SHORT, short),
            target=_unless_short(size, 0.8),
        )
        for size, rate in best.items()
    ]


def _unless_short(size: int, target: float) -> float | None:
    """Return a target of longer chains: the short one is what they are compared with."""
    return None if size == _CHAINS[0] else target


def _memory() -> list[Row]:
    chain = a_chain()
    peaks = []
    for size in _CHAINS[:2]:
        _grown(chain, size - len(chain.store))
        tracemalloc.start()
        fold(chain.read, chain.state.head)
        peaks.append(tracemalloc.get_traced_memory()[1] / 1024)
        tracemalloc.stop()
    case = f"more memory to verify {_CHAINS[1]:,} blocks than {_CHAINS[0]:,}, less is better"
    # One hash in memory per run of blocks; whole blocks would be megabytes.
    return [_row(case, peaks[1] - peaks[0], "KiB", ("what a walk may use", 256), target=1.0)]


def _last_event() -> list[Row]:
    """How long it takes to find the last SetInfo, which is at the bottom of the chain, with a warm index.

    The index is the state at the head: kept by the process, or as bytes by a cache that outlives it.
    """
    chain = a_chain(a_seed(), SetInfo(description="departures"), a_schema(), a_push_source())
    looks: dict[int, Callable[[], None]] = {}
    for size in _CHAINS:
        _grown(chain, size - len(chain.store))
        chain.blocks.clear()
        looks[size] = _looking(chain.state)
    for look in looks.values():
        look()
    best = dict.fromkeys(_CHAINS, 0.0)
    for _ in range(_ROUNDS):
        for size, look in looks.items():
            best[size] = max(best[size], _rate(_LOOKS, look, repeat=1))
    return [
        _row(
            f"last SetInfo of {size:,} blocks, process just started",
            1e6 / rate,
            "µs",
            (_SHORT, 1e6 / best[_CHAINS[0]]),
            target=_unless_short(size, 1.5),
        )
        for size, rate in best.items()
    ]


def _looking(state: ChainState) -> Callable[[], None]:
    """Return a function that looks up the last SetInfo `_LOOKS` times, like a process that has just started."""
    blobs, refs, cache = _NoBlocks(), MemoryRefStore(), _Cache()
    refs.compare_and_set(state.dataset_id, expected=None, new=state.head)
    cache.put(state.dataset_id, state_to_bytes(state))

    def look() -> None:
        for _ in range(_LOOKS):
            cached = ChainStates(blobs, refs, cache).current(state.dataset_id)
            assert cached is not None
            assert cached.info is not None

    return look


class _NoBlocks(MemoryBlobStore):
    """A store whose blocks must not be read: a warm index needs none."""

    def read(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> bytes:
        """Raise."""
        raise AssertionError(f"{kind} {name} of {dataset} was read though the index is warm")


class _Cache:
    """Stores states as bytes, like Redis."""

    def __init__(self) -> None:
        self._kept: dict[DatasetId, bytes] = {}

    def get(self, dataset: DatasetId) -> bytes | None:
        return self._kept.get(dataset)

    def put(self, dataset: DatasetId, state: bytes) -> None:
        self._kept[dataset] = state

    def forget(self, dataset: DatasetId) -> None:
        del self._kept[dataset]


def _imports() -> Row:
    """How long a fresh interpreter takes to import the whole pure part: the best of several attempts."""
    best = min(float(subprocess.check_output([sys.executable, "-c", _IMPORT])) for _ in range(5))
    return _row(
        "import the whole pure part, best of 5", 1000 * best, "ms", ("what a start may take", 500), target=1.0
    )


def _states(state: ChainState) -> list[Row]:
    raw = state_to_bytes(state)
    there = _rate(1000, lambda: [state_to_bytes(state) for _ in range(1000)])
    back = _rate(1000, lambda: [state_from_bytes(raw) for _ in range(1000)])
    return [
        _row("state of a chain to bytes", there, "states/s", ("what a node needs", 2000), target=1.0),
        _row("state of a chain from bytes", back, "states/s", ("what a node needs", 2000), target=1.0),
        _row(
            "size of a state, less is better", len(raw), "bytes", ("what a cache may hold", 2000), target=1.0
        ),
    ]


def _grown(chain: AChain, count: int) -> AChain:
    """Add blocks like those of pushes from a topic."""
    for number in range(len(chain.store), len(chain.store) + count):
        past = chain.state
        event = AddData(
            prev_offset=past.last_offset,
            new_data=a_slice(past.next_offset),
            new_watermark=a_time(number),
            new_source_state=a_source_state(_POSITION % number),
        )
        blocks, chain.last = build_blocks(past, [event], system_time=a_time(number), version=3)
        chain.blocks.extend(blocks)
        chain.store[blocks[0].hash] = blocks[0].raw
    return chain


def _admit_all(raws: list[bytes]) -> ChainState | None:
    state: ChainState | None = None
    for raw in raws:
        decoded = decode_block(raw)
        state = admit(state, decoded.block, block_hash=block_hash(raw), version=decoded.version)
    return state


def _rate(count: int, work: Callable[[], object], *, repeat: int = 3) -> float:
    """Return the rate of `count` operations per second of CPU time, the best of several attempts."""
    best = float("inf")
    for _ in range(repeat):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return count / best


def _row(case: str, value: float, unit: str, limit: tuple[str, float], *, target: float | None) -> Row:
    label, bound = limit
    return {
        "case": case,
        "value": round(value, 1),
        "unit": unit,
        "peer": label,
        "limit_or_peer": round(bound, 1),
        "ratio": round(value / bound, 2),
        "target": target,
    }


if __name__ == "__main__":
    for row in run():
        print("  ".join(f"{name}={value}" for name, value in row.items()))
