"""The engine's identity: a version that changes only when results may change.

The version contains the releases of the packages and platforms that compute, and `SEMANTICS`. That number is
incremented by hand with each change of a result or of a checkpoint. `tests/golden.json` has both for queries of every
kind, and `analysis/semantic_changes.py` knows which queries a change concerns. The build of the JVM is not included:
since release 17, Java computes floating point the same everywhere.
"""

import hashlib
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

from odf_common.metadata.events import TransformSql
from odf_common.ports.engine import EngineNotAvailable
from odf_engine_spark.analysis.semantic_changes import SemanticChange, kinds_since, number_of, with_number
from odf_engine_spark.spark.jvm import Spark

ENGINE: Final = "spark"
PACKAGES: Final = ("numpy", "pyarrow", "pyspark")
SEMANTICS: Final = 2
# Earlier versions had a hash of the sources instead of `SEMANTICS`; with the same releases their results are equal.
FORMER: Final[Mapping[str, str]] = {"0.1.0+spark4.3.0.5bc3fbb2aaf3": "0.1.0+spark4.3.0.s1.bb71a90a73af"}
HASH_DIGITS: Final = 12
OTHER_RELEASES: Final = "other releases of Spark, Arrow, NumPy, Java or Python computed it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The engine's version, in the form in which transforms name it."""

    version: str

    def require(self, transform: TransformSql) -> None:
        """Raise `EngineNotAvailable` if the transform names another engine, other releases, or a later number.

        A transform with an earlier semantics number is accepted: its plan shows later whether its results differ.
        """
        is_accepted = transform.version is None or (
            self._has_same_releases(transform.version) and self.number_of(transform) <= SEMANTICS
        )
        if transform.engine.lower() != ENGINE or not is_accepted:
            name = " ".join(part for part in (transform.engine, transform.version) if part)
            text = (
                f"the transform requires {name}, but this engine is {ENGINE} {self.version}: use a node with "
                "the required engine, or continue with this one by `odf engine upgrade DATASET`"
            )
            raise EngineNotAvailable(text=text)

    def number_of(self, transform: TransformSql) -> int:
        """Return the semantics number in the version that a transform names."""
        return number_of(transform.version, SEMANTICS)

    def differences(self, transform: TransformSql, changes: Iterable[SemanticChange]) -> tuple[str, ...]:
        """Return the kinds of differences between this engine's results and those of a transform's version."""
        kinds = kinds_since(changes, self.number_of(transform))
        has_same = transform.version is None or self._has_same_releases(transform.version)
        return kinds if has_same else (OTHER_RELEASES, *kinds)

    def _has_same_releases(self, other: str) -> bool:
        return with_number(FORMER.get(other, other), SEMANTICS) == self.version


def identity_of(spark: Spark) -> Identity:
    """Return the identity of the engine that a session belongs to."""
    java = str(spark.method("java.lang.System.getProperty")("java.specification.version"))
    releases = {name: version(name) for name in PACKAGES}
    runs_on = {"java": java, "python": ".".join(platform.python_version_tuple()[:2])}
    name = f"{version('odf-engine-spark')}+spark{releases['pyspark']}.s{SEMANTICS}"
    return Identity(version=f"{name}.{digest({**releases, **runs_on})}")


def digest(releases: Mapping[str, str]) -> str:
    """Return a short hash of the releases, in hexadecimal digits."""
    return hashlib.sha256(repr(sorted(releases.items())).encode()).hexdigest()[:HASH_DIGITS]
