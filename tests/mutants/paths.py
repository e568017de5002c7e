"""The paths of packages, and of tests by short names."""

from functools import partial
from typing import Final

COMMON: Final = "libs/odf_common/odf_common"
COORDINATOR: Final = "services/coordinator/odf_coordinator"
INGEST: Final = "services/ingest/odf_ingest"
VERIFIER: Final = "services/verifier/odf_verifier"
SYNC: Final = "services/sync/odf_sync"


def _tests(folder: str, *names: str) -> tuple[str, ...]:
    """Return the tests of a folder: `push/file` is `push/test_file.py`, and `push/` the whole folder."""
    return tuple(f"{folder}/{_path(*name.rpartition('/'))}" for name in names)


def _path(folder: str, slash: str, name: str) -> str:
    return f"{folder}{slash}test_{name}.py" if name else folder


of_common = partial(_tests, "libs/odf_common/tests")
of_cli = partial(_tests, "libs/odf_cli/tests")
of_coordinator = partial(_tests, "services/coordinator/tests")
of_ingest = partial(_tests, "services/ingest/tests")
of_sync = partial(_tests, "services/sync/tests")
of_verifier = partial(_tests, "services/verifier/tests")
of_support = partial(_tests, "tests/support/tests")
