import subprocess
import sys

CPUS = 3
# In a process of its own, as threads that were started once stay.
COUNTING = """
import os, sys
import pyarrow as pa, pyarrow.parquet as pq
from odf_common.data.arrow_threads import start_arrow_threads
from odf_common.data.slices import read_slice

def count():
    return len(os.listdir("/proc/self/task"))

pa.set_cpu_count(int(sys.argv[2]))
before = count()
start_arrow_threads()
print(count() - before)
pq.write_table(pa.table({str(number): [number] for number in range(1000)}), sys.argv[1])
read_slice(__import__("pathlib").Path(sys.argv[1]))
print(count() - before)
"""


def test_all_threads_are_started_at_once(tmp_path: object) -> None:
    command = [sys.executable, "-c", COUNTING, f"{tmp_path}/slice", str(CPUS)]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=True)
    started, later = map(int, done.stdout.split())
    assert later == started > CPUS
