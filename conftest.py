"""Which examples hypothesis tries, and which process of a run gets which file."""

from odf_testing.profiles import load_profile
from odf_testing.scheduling import pytest_xdist_make_scheduler

__all__ = ["pytest_xdist_make_scheduler"]

load_profile()
