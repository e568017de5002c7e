"""The same requests give the same bytes: as recorded, and in a cold process with another number of cores.

`golden.json` has what every kind of query writes, and which engine wrote it. To write it anew after `SEMANTICS` or a
release was raised: `python services/engine-spark/tests/test_cores.py 'local[2]' > services/engine-spark/tests/golden.json`.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest
from odf_testing.engine import FLIGHTS, MINUTE, VOCAB, WEATHER, Chain, Derivative, sql
from odf_testing.engine_kinds import KINDS, chains

from odf_engine_spark.server.identity import identity_of
from odf_engine_spark.spark.jvm import Spark
from odf_engine_spark.spark.session import start
from odf_engine_spark.transform.transform import Transforms

GOLDEN: Final = Path(__file__).with_name("golden.json")
SAMPLE: Final = tuple(KINDS)[::5]


def golden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GOLDEN.read_text())
    return found


def digest(transforms: Transforms, kind: str, folder: Path) -> str:
    """Return what a kind of query writes in two requests, data and checkpoints, as one hash."""
    inputs = []
    for name, blocks in chains(KINDS[kind], back=20 * MINUTE).items():
        schema = WEATHER if name == "weather" else FLIGHTS
        chain = Chain(name=name, schema=schema, vocab=VOCAB, folder=folder)
        for block in blocks:
            chain.add(block)
        inputs.append(chain)
    transform = sql(*KINDS[kind])
    derivative = Derivative(transforms=transforms, transform=transform, chains=inputs, folder=folder)
    derivative.pull(*(4 for _ in inputs))
    derivative.pull()
    written = [folder / name for name in ("data-0", "checkpoint-0", "data-1", "checkpoint-1")]
    return hashlib.sha3_256(b"".join(file.read_bytes() for file in written)).hexdigest()


def digests(spark: Spark, kinds: Iterable[str]) -> dict[str, str]:
    """Return the digests of kinds of queries."""
    transforms, found = Transforms(spark, is_signed=False), {}
    for kind in kinds:
        with tempfile.TemporaryDirectory() as folder:
            found[kind] = digest(transforms, kind, Path(folder))
    return found


def test_the_engine_is_the_one_that_wrote_them(spark: Spark) -> None:
    assert identity_of(spark).version == golden()["engine"], (
        "write golden.json anew, and look at what has changed"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_writes_what_it_wrote_before(spark: Spark, kind: str) -> None:
    assert digests(spark, [kind]) == {kind: golden()["digests"][kind]}, "raise the number or mend the change"


@pytest.mark.timeout(900)  # a cold JVM
def test_neither_cores_nor_temperature_matter() -> None:
    command = [sys.executable, __file__, "local[1]", *SAMPLE]
    cold = subprocess.run(command, check=True, capture_output=True, text=True, timeout=800)
    assert json.loads(cold.stdout)["digests"] == {kind: golden()["digests"][kind] for kind in SAMPLE}


if __name__ == "__main__":
    session = start(sys.argv[1])
    written = digests(session, sys.argv[2:] or KINDS)
    print(json.dumps({"engine": identity_of(session).version, "digests": written}, indent=2))
    session.session.stop()
