"""Which examples hypothesis tries, which process of a run gets which file, a fast collection, and short tracebacks."""

import structlog
from odf_testing.collection import pytest_collection
from odf_testing.profiles import load_profile
from odf_testing.scheduling import pytest_xdist_make_scheduler

__all__ = ["pytest_collection", "pytest_xdist_make_scheduler"]

load_profile()
# The default ones show local variables, and take a hundred times as long; many tests provoke errors that are logged.
structlog.dev.ConsoleRenderer.get_active().exception_formatter = structlog.dev.plain_traceback
