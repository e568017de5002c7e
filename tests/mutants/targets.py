"""Which modules are mutated, and which tests are nearest to each."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

COMMON: Final = "libs/odf_common/odf_common"
COORDINATOR: Final = "services/coordinator/odf_coordinator"
INGEST: Final = "services/ingest/odf_ingest"
VERIFIER: Final = "services/verifier/odf_verifier"
SYNC: Final = "services/sync/odf_sync"
_COMMON_TESTS: Final = "libs/odf_common/tests"
_COORDINATOR_TESTS: Final = "services/coordinator/tests"
_INGEST_TESTS: Final = "services/ingest/tests"

# Patterns of modules, and the tests that are run for each of them; the quickest come first.
NEAREST: Final[Mapping[str, tuple[str, ...]]] = {
    f"{COMMON}/chain/*.py": (f"{_COMMON_TESTS}/chain", f"{_COMMON_TESTS}/dataset"),
    f"{COMMON}/chain/rules/*.py": (f"{_COMMON_TESTS}/chain",),
    f"{COMMON}/codec/flatbuffers/reader.py": (f"{_COMMON_TESTS}/codec",),
    f"{COMMON}/codec/flatbuffers/untrusted_buffer.py": (f"{_COMMON_TESTS}/codec",),
    f"{COMMON}/data/slice_checks.py": (f"{_COMMON_TESTS}/data/test_checks.py", "services/sync/tests"),
    f"{COMMON}/adapters/local/[bdr]*.py": (
        f"{_COMMON_TESTS}/adapters/test_local_store.py",
        f"{_COMMON_TESTS}/adapters/test_locks.py",
        f"{_COORDINATOR_TESTS}/test_power_cuts.py",
    ),
    f"{COORDINATOR}/commit/[cd]*.py": (
        f"{_COORDINATOR_TESTS}/test_committer.py",
        f"{_COORDINATOR_TESTS}/test_duplicates.py",
        f"{_COORDINATOR_TESTS}/test_dataset_locks.py",
        f"{_COORDINATOR_TESTS}/test_imports.py",
        f"{_COORDINATOR_TESTS}/test_copies.py",
        f"{_COORDINATOR_TESTS}/test_signing.py",
    ),
    f"{COORDINATOR}/operations/import_chain.py": (
        f"{_COORDINATOR_TESTS}/test_imports.py",
        f"{_COORDINATOR_TESTS}/test_committer.py",
        f"{_COORDINATOR_TESTS}/test_references.py",
    ),
    f"{VERIFIER}/[irv]*.py": ("services/verifier/tests",),
    f"{SYNC}/[cos]*.py": ("services/sync/tests",),
    f"{INGEST}/commit/position.py": (
        f"{_INGEST_TESTS}/test_position.py",
        f"{_INGEST_TESTS}/push/test_file.py",
    ),
    f"{INGEST}/commit/committer.py": (
        f"{_INGEST_TESTS}/push/test_messages.py",
        f"{_INGEST_TESTS}/push/test_file.py",
    ),
    f"{INGEST}/push/kafka_batch.py": (
        f"{_INGEST_TESTS}/push/test_messages.py",
        f"{_INGEST_TESTS}/push/test_halves.py",
    ),
    f"{INGEST}/push/start_position.py": (f"{_INGEST_TESTS}/push/test_reader.py",),
}
# Wiring that a node needs; no unit test is meant to run it.
LEFT_OUT: Final = frozenset({f"{SYNC}/server.py", f"{SYNC}/service.py"})


def targets(root: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Iterate over the paths of the modules, each with its tests."""
    for pattern, tests in NEAREST.items():
        for file in sorted(root.glob(pattern)):
            path = file.relative_to(root).as_posix()
            if path not in LEFT_OUT:
                yield path, tests
