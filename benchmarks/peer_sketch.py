"""The sketch of catching up: only what must be done to every record, one step after another in one thread.

Messages of a topic are parsed, hashed and written as Parquet files that are hashed in turn; nothing is checked,
merged or committed. Arguments: bootstrap server, topic, number of messages, folder to create. Prints seconds and
processor seconds from the first request to the last file of the second, warm copy.
"""

import hashlib
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from departures import parse
from peer_io import print_cost, texts

from odf_common.hashing.logical import logical_hash


def main() -> None:
    """Consume, parse, hash, write, hash."""
    bootstrap, topic, count, name = sys.argv[1:]
    pa.set_cpu_count(1)

    def copy(folder: Path) -> None:
        folder.mkdir(parents=True)
        for number, text in enumerate(texts(bootstrap, topic, int(count))):
            records = parse(text)
            logical_hash(records)
            file = folder / f"{number}.parquet"
            pq.write_table(records, file)
            with file.open("rb") as written:
                hashlib.file_digest(written, "sha3_256")

    print_cost(copy, Path(name))


if __name__ == "__main__":
    main()
