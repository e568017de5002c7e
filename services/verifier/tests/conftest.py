from pathlib import Path

import pytest
from odf_testing.verifier import Story


@pytest.fixture
def story(tmp_path: Path) -> Story:
    """A node without datasets."""
    return Story(tmp_path)
