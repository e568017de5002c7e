"""Starts the threads with which Arrow reads before any of them is needed.

If the system refuses to start one later, Arrow still counts the thread, and tasks that wait for it never end. Threads
that have been started stay.
"""

from typing import Final

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

_COLUMNS_PER_THREAD: Final = 16  # more tasks than the threads that exist finish before the next one is queued


def start_arrow_threads() -> None:
    """Start all threads that decode columns, and one that reads files; raises Arrow's error if one cannot start."""
    pa.set_io_thread_count(1)  # files are local, and more of them would be started when they are needed
    table = pa.table({str(number): [number] for number in range(_COLUMNS_PER_THREAD * pa.cpu_count())})
    file = pa.BufferOutputStream()
    pq.write_table(table, file)
    with pq.ParquetFile(pa.BufferReader(file.getvalue())) as parquet:
        parquet.read(use_threads=True)
    pcsv.read_csv(pa.BufferReader(b"a\n1\n"))
