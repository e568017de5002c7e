"""Every kind of query writes the same bytes: as recorded, repeated, in any batching, on any number of cores.

`golden.json` has what every kind of query writes when its input is cut into requests by `SEED`, and which engine wrote
it. To write it again after `SEMANTICS` or a release was raised:
`python services/engine-spark/tests/test_kinds.py 'local[2]' > services/engine-spark/tests/golden.json`.
"""

import hashlib
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import structlog
from odf_testing.engine import FLIGHTS, MINUTE, VOCAB, WEATHER, Block, Chain, Derivative, sql
from odf_testing.engine_kinds import KINDS, chains

from odf_engine_spark.server.identity import identity_of
from odf_engine_spark.spark.jvm import Spark
from odf_engine_spark.spark.session import start
from odf_engine_spark.transform.execute_transform import Transforms

GOLDEN: Final = Path(__file__).with_name("golden.json")
SEED: Final = 11


def golden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GOLDEN.read_text())
    return found


def derivative(spark: Spark, kind: str, folder: Path) -> Derivative:
    """Return a derivative of a kind of query, of which nothing is computed, with separate inputs."""
    folder.mkdir()
    return Derivative(
        transforms=Transforms(spark, is_signed=False),
        transform=sql(*KINDS[kind]),
        chains=[chain(name, blocks, folder) for name, blocks in chains(kind, back=40 * MINUTE).items()],
        folder=folder,
    )


def chain(name: str, blocks: Sequence[Block], folder: Path) -> Chain:
    made = Chain(name=name, schema=WEATHER if name == "weather" else FLIGHTS, vocab=VOCAB, folder=folder)
    for block in blocks:
        made.add(block)
    return made


def pull_in_parts(derived: Derivative, other: Transforms, source: random.Random) -> None:
    """Pull everything in a few requests, one of which another engine has already answered, but the answer was lost."""
    ends = [[*sorted(source.choices(range(7), k=3)), 7] for _ in derived.chains]
    lost = source.randrange(len(ends[0]))
    for number, until in enumerate(zip(*ends, strict=True)):
        if number == lost:
            pull_after_a_loss(derived, other, until)
        else:
            derived.pull(*until)


def pull_after_a_loss(derived: Derivative, other: Transforms, until: Sequence[int]) -> None:
    lost = [derived.folder / name for name in ("lost-data", "lost-checkpoint")]
    other.execute(derived.request(derived.done or [0] * len(until), until, *lost))
    derived.pull(*until)
    assert derived.checkpoint is not None
    kept = [derived.folder / derived.checkpoint.name.replace("checkpoint", "data"), derived.checkpoint]
    assert [file.read_bytes() for file in lost] == [file.read_bytes() for file in kept]
    for file in lost:
        file.unlink()


def in_parts(spark: Spark, kind: str, seed: int, folder: Path) -> Derivative:
    """Return a derivative of a kind of query that was pulled in parts."""
    derived = derivative(spark, kind, folder)
    pull_in_parts(derived, Transforms(spark, is_signed=False), random.Random(f"{kind} {seed}"))
    return derived


def digest(derived: Derivative) -> str:
    """Return one hash of the data and checkpoints that all requests have written."""
    steps = range(len(derived.tables))
    files = [derived.folder / f"{name}-{step}" for step in steps for name in ("data", "checkpoint")]
    return hashlib.sha3_256(b"".join(file.read_bytes() for file in files)).hexdigest()


def digests(spark: Spark, kinds: Iterable[str]) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        return {
            kind: digest(in_parts(spark, kind, SEED, Path(folder, str(number))))
            for number, kind in enumerate(kinds)
        }


def exact_rows(derived: Derivative) -> list[str]:
    """Return the rows so that each bit of a float counts, and NaN is itself."""
    return [repr(row) for row in derived.rows()]


def test_the_engine_is_the_one_that_wrote_the_recorded_bytes(spark: Spark) -> None:
    assert identity_of(spark).version == golden()["engine"], (
        "write golden.json again, and look at what has changed"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_are_as_recorded(spark: Spark, tmp_path: Path, kind: str) -> None:
    cut = in_parts(spark, kind, SEED, tmp_path / "cut")
    assert cut.rows()
    assert digest(cut) == golden()["digests"][kind], "raise the number or mend the change"


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.soak) for seed in (SEED, 12)])
@pytest.mark.parametrize("kind", [*KINDS])
def test_neither_batching_nor_repetition_matters(spark: Spark, tmp_path: Path, kind: str, seed: int) -> None:
    whole = derivative(spark, kind, tmp_path / "whole")
    whole.pull()
    assert whole.rows()
    cut = in_parts(spark, kind, seed, tmp_path / "cut")
    assert Counter(exact_rows(cut)) == Counter(exact_rows(whole))
    assert cut.watermark == whole.watermark
    if len(cut.chains) == 1:
        assert exact_rows(cut) == exact_rows(whole)


@pytest.mark.soak  # the tests above have twelve cores, and `golden.json` was written by two
def test_neither_cores_nor_temperature_matter() -> None:
    command = [sys.executable, __file__, "local[1]"]
    cold = subprocess.run(command, check=True, capture_output=True, text=True, timeout=800)
    assert json.loads(cold.stdout)["digests"] == golden()["digests"]


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))  # the result is on stdout
    session = start(sys.argv[1])
    written = digests(session, sys.argv[2:] or KINDS)
    print(json.dumps({"engine": identity_of(session).version, "digests": written}, indent=2))
    session.session.stop()
