"""Archives the classes that a warm session loads, so that later sessions start sooner.

`python -m odf_engine_spark.spark.class_archive` writes `share/odf/spark.jsa` in the environment (about 160 MB).
A JVM ignores an archive that was made with another Java or Spark.
"""

import os

from odf_engine_spark.spark.jvm import Java
from odf_engine_spark.spark.session import ARCHIVE, start


def main() -> None:
    """Start a session, stop it, and move the archive that it writes into place."""
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
