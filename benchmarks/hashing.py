"""The logical hash compared with `hashlib` alone over the same bytes, on the same cores: the cost of encoding."""

import hashlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Final

import numpy as np
import pyarrow as pa

from odf_common.hashing.arrow_digest import encoded_blocks, plain, validity
from odf_common.hashing.logical import logical_hash

ROWS: Final = 1_000_000
REPEATS: Final = 15


def run() -> list[dict[str, str | float]]:
    """Return a row per case: MB of hashed stream per second, compared with hashlib's."""
    return [
        _case("logical hash, 8 x int64, dense", _integers(0.0), target=0.9),
        _case("logical hash, 8 x int64, half null", _integers(0.5), target=0.65),
        _case("logical hash, 4 x string", _strings(), target=0.75),
    ]


def _case(case: str, table: pa.Table, *, target: float) -> dict[str, str | float]:
    streams = [
        b"".join(block.data for block in encoded_blocks(plain(array), validity(array)))
        for column in table.columns
        for array in column.chunks
    ]
    size = sum(len(raw) for raw in streams) / 1e6
    pairs = _race(lambda: logical_hash(table), lambda: _hashlib(streams))
    ours, peer = (median(seconds) for seconds in zip(*pairs, strict=True))
    return {
        "case": case,
        "value": round(size / ours),
        "unit": "MB/s",
        "peer": "hashlib, same bytes",
        "limit_or_peer": round(size / peer),
        "ratio": round(median(theirs / own for own, theirs in pairs), 2),
        "target": target,
    }


def _race(ours: Callable[[], object], peer: Callable[[], object]) -> list[tuple[float, float]]:
    """Return the seconds of both, interleaved, so that a busy machine slows both of a pair."""
    return [(_seconds(ours), _seconds(peer)) for _ in range(REPEATS)]


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _hashlib(streams: list[bytes]) -> None:
    with ThreadPoolExecutor(pa.cpu_count()) as pool:
        list(pool.map(lambda raw: hashlib.sha3_256(raw).digest(), streams))


def _integers(nulls: float) -> pa.Table:
    random = np.random.default_rng(1)
    values = [random.integers(-(2**62), 2**62, ROWS) for _ in range(8)]
    masks = [random.random(ROWS) < nulls if nulls else None for _ in range(8)]
    return pa.table(
        {f"c{i}": pa.array(v, mask=m) for i, (v, m) in enumerate(zip(values, masks, strict=True))}
    )


def _strings() -> pa.Table:
    random = np.random.default_rng(1)
    return pa.table({f"c{i}": _words(random) for i in range(4)})


def _words(random: np.random.Generator) -> pa.Array:
    """Return words of 1 to 31 letters."""
    offsets = np.zeros(ROWS + 1, np.int32)
    np.cumsum(random.integers(1, 32, ROWS), out=offsets[1:])
    letters = random.integers(97, 123, int(offsets[-1])).astype(np.uint8)
    return pa.StringArray.from_buffers(ROWS, pa.py_buffer(offsets), pa.py_buffer(letters))


if __name__ == "__main__":
    for row in run():
        print(row)
