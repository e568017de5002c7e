"""Which engine this is: a version that is the same wherever the same results come out.

Counted are the releases of what computes and of what it runs on, and the sources that decide on results: all of this
package but its edges, and the model's records. Comments, docstrings and layout do not count, nor do tests, services or
the JVM's build: since release 17 Java computes floating point the same everywhere.
"""

import ast
import hashlib
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

import odf_common.data
import odf_engine_spark
from odf_common.metadata.steps import TransformSql
from odf_common.ports.engine import EngineNotAvailable
from odf_engine_spark.jvm import Spark

ENGINE: Final = "spark"
PACKAGES: Final = ("numpy", "pyarrow", "pyspark")
EDGES: Final = frozenset(
    {
        "__main__",
        "adhoc",
        "archive",
        "evolution",
        "faults",
        "identity",
        "jobs",
        "launching",
        "messages",
        "progress",
        "pulse",
        "requests",
    }
    | {"server", "service", "spare"}
)  # modules that decide on no result of a transform; those for tests neither
TESTING: Final = "testing"
DIGITS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The engine's version as transforms name it."""

    version: str

    def require(self, transform: TransformSql) -> None:
        """Return if a transform may run here; raises `EngineNotAvailable` if it names another engine or version."""
        if transform.engine.lower() != ENGINE or transform.version not in (None, self.version):
            wanted = " ".join(part for part in (transform.engine, transform.version) if part)
            text = (
                f"the transform is for {wanted}, the engine here is {ENGINE} {self.version}: use a node that has the "
                "former, or commit the SetTransform again without a version to go on with the latter"
            )
            raise EngineNotAvailable(text=text)


def identity_of(spark: Spark) -> Identity:
    """Return the identity of a session's engine."""
    java = str(spark.jvm.java.lang.System.getProperty("java.specification.version"))
    releases = {name: version(name) for name in PACKAGES}
    runs_on = {"java": java, "python": ".".join(platform.python_version_tuple()[:2])}
    counted = digest({**releases, **runs_on}, (meaning(file.read_text()) for file in sources()))
    return Identity(version=f"{version('odf-engine-spark')}+spark{releases['pyspark']}.{counted}")


def sources() -> tuple[Path, ...]:
    """Return the files that count, in order."""
    package = _modules(odf_engine_spark.__path__)
    return (
        *(file for file in package if file.stem not in EDGES and not file.stem.startswith(TESTING)),
        *_modules(odf_common.data.__path__),
    )


def meaning(source: str) -> str:
    """Return what a module does, whatever its comments, docstrings and layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and ast.get_docstring(node) is not None
        ):
            node.body = node.body[1:]
    return ast.dump(tree)


def digest(releases: Mapping[str, str], meanings: Iterable[str]) -> str:
    """Return twelve hexadecimal digits for what counts; the sources' order counts too."""
    total = hashlib.sha256(repr(sorted(releases.items())).encode())
    for each in meanings:
        total.update(hashlib.sha256(each.encode()).digest())
    return total.hexdigest()[:DIGITS]


def _modules(folders: Iterable[str]) -> Iterator[Path]:
    for folder in folders:
        yield from sorted(Path(folder).glob("*.py"))
