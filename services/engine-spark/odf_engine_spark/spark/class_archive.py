"""Archive the classes that a warm session loads, so that the next sessions start in half the time.

`python -m odf_engine_spark.spark.class_archive` writes `share/odf/spark.jsa` in the environment (about 160 MB).
A JVM that finds it made for another Java or another Spark starts without it.
"""

import os

from odf_engine_spark.spark.jvm import Java
from odf_engine_spark.spark.session import ARCHIVE, start


def main() -> None:
    """Start a session, end it, and put the archive that it leaves in its place."""
    ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    new = ARCHIVE.with_name(f"{ARCHIVE.name}.{os.getpid()}")
    spark = start("local[2]", archive_to=new)
    gateway: Java = spark.session.sparkContext._gateway  # noqa: SLF001 - the process is not told elsewhere
    spark.session.stop()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    new.replace(ARCHIVE)


if __name__ == "__main__":
    main()
