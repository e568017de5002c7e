"""Archives the classes that a warm session loads (CDS), so that later sessions start sooner.

`python -m odf_engine_spark.spark.class_archive` writes `share/odf/spark.jsa` in the environment (about 160 MB). A JVM
of another version, or with another Spark, ignores the archive.
"""

import os

from odf_engine_spark.spark.jvm import Java
from odf_engine_spark.spark.session import ARCHIVE, start


def main() -> None:
    """Start and stop a session, and move the archive that its JVM writes into place."""
    ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    new = ARCHIVE.with_name(f"{ARCHIVE.name}.{os.getpid()}")
    spark = start("local[2]", archive_to=new)
    gateway: Java = spark.session.sparkContext._gateway  # noqa: SLF001 - PySpark does not expose the process
    spark.session.stop()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    new.replace(ARCHIVE)


if __name__ == "__main__":
    main()
