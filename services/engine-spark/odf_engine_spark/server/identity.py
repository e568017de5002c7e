"""The engine's identity: a version that changes only when results may change.

It covers the releases of the packages and platforms that compute, and `SEMANTICS`. That number is raised by hand with
each change of a result or of a checkpoint; `tests/golden.json` has both for queries of every kind. The JVM's build is
left out: since release 17 Java computes floating point the same everywhere.
"""

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

from odf_common.metadata.steps import TransformSql
from odf_common.ports.engine import EngineNotAvailable
from odf_engine_spark.spark.jvm import Spark

ENGINE: Final = "spark"
PACKAGES: Final = ("numpy", "pyarrow", "pyspark")
SEMANTICS: Final = 1
# Earlier versions had a hash of the sources instead of `SEMANTICS`; with the same releases their results are equal.
FORMER: Final[Mapping[str, str]] = {"0.1.0+spark4.3.0.5bc3fbb2aaf3": "0.1.0+spark4.3.0.s1.bb71a90a73af"}
HASH_DIGITS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The engine's version, as transforms name it."""

    version: str

    def require(self, transform: TransformSql) -> None:
        """Raise `EngineNotAvailable` if the transform names another engine or version."""
        engine_version = transform.version and FORMER.get(transform.version, transform.version)
        if transform.engine.lower() != ENGINE or engine_version not in (None, self.version):
            name = " ".join(part for part in (transform.engine, transform.version) if part)
            text = (
                f"the transform requires {name}, but this engine is {ENGINE} {self.version}: use a node with "
                "the required engine, or commit the SetTransform again without a version to upgrade to this one"
            )
            raise EngineNotAvailable(text=text)


def identity_of(spark: Spark) -> Identity:
    """Return the identity of a session's engine."""
    java = str(spark.method("java.lang.System.getProperty")("java.specification.version"))
    releases = {name: version(name) for name in PACKAGES}
    runs_on = {"java": java, "python": ".".join(platform.python_version_tuple()[:2])}
    name = f"{version('odf-engine-spark')}+spark{releases['pyspark']}.s{SEMANTICS}"
    return Identity(version=f"{name}.{digest({**releases, **runs_on})}")


def digest(releases: Mapping[str, str]) -> str:
    """Return twelve hexadecimal digits that identify the releases."""
    return hashlib.sha256(repr(sorted(releases.items())).encode()).hexdigest()[:HASH_DIGITS]
