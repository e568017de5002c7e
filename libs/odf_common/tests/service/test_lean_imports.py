"""Processes that do without some packages convert values as others do."""

import subprocess
import sys

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


def test_pandas_would_be_imported_otherwise() -> None:
    """If this fails, Arrow no longer imports it, and `lean_imports` need not name it."""
    code = "import sys, pyarrow as pa; pa.array([1]); sys.exit('pandas' not in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
