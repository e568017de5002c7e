"""Which examples hypothesis tries, which process of a run gets which file, and a fast collection."""

from odf_testing.collection import pytest_collection
from odf_testing.profiles import load_profile
from odf_testing.scheduling import pytest_xdist_make_scheduler

__all__ = ["pytest_collection", "pytest_xdist_make_scheduler"]

load_profile()
