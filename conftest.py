"""Which examples hypothesis tries, and which tests share a process when the suite runs in several."""

import pytest

from odf_common.testing.profiles import load_profile

load_profile()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep what stands on one costly fixture together; everything else goes wherever there is room."""
    for item in items:
        if item.get_closest_marker("integration") or "tests/integration" in str(item.path):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
        elif "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
