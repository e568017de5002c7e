"""The peer of catching up: the same topic into a Delta table with commonly used libraries, without hashes.

The files of a commit are fsynced, which the library leaves to the system. Arguments: bootstrap server, topic, number of
messages, folder to create. Prints seconds and processor seconds from the first request to the last commit of the
second, warm copy.
"""

import os
import sys
from pathlib import Path

from deltalake import write_deltalake
from departures import parse
from peer_io import print_cost, texts


def main() -> None:
    """Consume, parse, append, fsync."""
    bootstrap, topic, count, name = sys.argv[1:]

    def copy(folder: Path) -> None:
        durable: set[Path] = set()
        for text in texts(bootstrap, topic, int(count)):
            write_deltalake(folder, parse(text), mode="append")
            written = set(folder.rglob("*.*")) - durable
            for path in (*sorted(written), folder, folder / "_delta_log"):
                _fsync(path)
            durable |= written

    print_cost(copy, Path(name))


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


if __name__ == "__main__":
    main()
