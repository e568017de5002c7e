"""Which modules are mutated, and which suite of tests is recorded for each package."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

# A package, and the tests that are run for its modules.
SUITES: Final[Mapping[str, tuple[str, ...]]] = {
    "libs/odf_common/odf_common": ("libs/odf_common/tests", "libs/odf_cli/tests", "tests/support/tests"),
    "services/coordinator/odf_coordinator": ("services/coordinator/tests",),
    "services/engine-spark/odf_engine_spark": ("services/engine-spark/tests",),
    "services/ingest/odf_ingest": ("services/ingest/tests",),
    "services/sync/odf_sync": ("services/sync/tests",),
    "services/verifier/odf_verifier": ("services/verifier/tests",),
}
# Generated code, wiring that a node needs, and adapters that only tests over the real broker run.
LEFT_OUT: Final = (
    "libs/odf_common/odf_common/proto/**/*.py",
    "libs/odf_common/odf_common/adapters/kafka/*.py",
    "services/*/*/service.py",
    "services/*/*/__main__.py",
    "services/sync/odf_sync/grpc_servicer.py",
    "services/sync/odf_sync/http/server.py",
)


def package_of(path: str) -> str:
    """Return the package of a module."""
    return next(package for package in SUITES if path.startswith(f"{package}/"))


def targets(root: Path) -> Iterator[str]:
    """Iterate over the paths of the modules that are mutated."""
    left_out = {file for pattern in LEFT_OUT for file in root.glob(pattern)}
    for package in SUITES:
        for file in sorted((root / package).rglob("*.py")):
            if file not in left_out:
                yield file.relative_to(root).as_posix()
