"""The same requests in another process, cold and with other cores, give the same bytes (design: law 2)."""

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from odf_engine_spark.jvm import Spark
from odf_engine_spark.session import start
from odf_engine_spark.testing import FLIGHTS, MINUTE, VOCAB, WEATHER, Chain, Derivative, sql
from odf_engine_spark.testing_kinds import KINDS, chains
from odf_engine_spark.transform import Transforms


def digests(spark: Spark, folder: Path) -> dict[str, str]:
    """Return what every kind of query writes, data and checkpoints, as one hash each."""
    transforms, found = Transforms(spark, is_signed=False), {}
    for number, (kind, steps) in enumerate(KINDS.items()):
        place = folder / str(number)
        place.mkdir()
        inputs = []
        for name, blocks in chains(steps, back=20 * MINUTE).items():
            chain = Chain(
                name=name, schema=WEATHER if name == "weather" else FLIGHTS, vocab=VOCAB, folder=place
            )
            for block in blocks:
                chain.add(block)
            inputs.append(chain)
        derivative = Derivative(transforms=transforms, transform=sql(*steps), chains=inputs, folder=place)
        derivative.pull(*(4 for _ in inputs))
        derivative.pull()
        written = [place / name for name in ("data-0", "checkpoint-0", "data-1", "checkpoint-1")]
        found[kind] = hashlib.sha3_256(b"".join(file.read_bytes() for file in written)).hexdigest()
    return found


@pytest.mark.timeout(900)  # all kinds, twice, once in a cold JVM
def test_neither_cores_nor_temperature_matter(spark: Spark, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    here = digests(spark, tmp_path / "here")
    there = subprocess.run(
        [sys.executable, __file__, "local[1]"], check=True, capture_output=True, text=True, timeout=800
    )
    assert json.loads(there.stdout.splitlines()[-1]) == here


if __name__ == "__main__":
    session = start(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        print(json.dumps(digests(session, Path(scratch))))
    session.session.stop()
