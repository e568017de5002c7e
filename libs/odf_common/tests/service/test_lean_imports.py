"""Processes that do without some packages convert values as others do."""

import subprocess
import sys

import pytest

CONVERSIONS = """
import gc, sys
from odf_common.service.lean_imports import lean_imports
with lean_imports("pandas", "rich"):
    import pyarrow as pa
    import structlog
assert pa.array([None, 1]).to_pylist() == [None, 1]
assert pa.chunked_array([[1]]).to_numpy().tolist() == [1]
try:
    import pandas
except ModuleNotFoundError as error:
    assert error.name == "pandas"
assert not {"pandas", "rich"} & sys.modules.keys()
assert gc.isenabled() and gc.get_freeze_count() > 10_000
"""


def test_arrow_converts_values_without_importing_pandas() -> None:
    subprocess.run([sys.executable, "-c", CONVERSIONS], check=True, timeout=60)


@pytest.mark.parametrize(
    ("used", "imported"), [("import pyarrow; pyarrow.array([1])", "pandas"), ("import structlog", "rich")]
)
def test_packages_would_be_imported_otherwise(used: str, imported: str) -> None:
    """If this fails, `lean_imports` need not name the package any more."""
    code = f"import sys; {used}; sys.exit('{imported}' not in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
