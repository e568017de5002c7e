"""Examples of hypothesis, the time zone, which process gets which file, where files are, collection, tracebacks."""

import os
import time

import structlog
from odf_testing.collection import pytest_collection
from odf_testing.first_umask import first_umask
from odf_testing.profiles import load_profile
from odf_testing.scheduling import pytest_xdist_make_scheduler
from odf_testing.temporary_files import pytest_cmdline_main

__all__ = ["first_umask", "pytest_cmdline_main", "pytest_collection", "pytest_xdist_make_scheduler"]

load_profile()
# UTC hides local times that are taken for universal ones, and has no day on which clocks change.
os.environ.setdefault("TZ", "America/New_York")
time.tzset()
# The default ones show local variables, and take a hundred times as long; many tests provoke errors that are logged.
structlog.dev.ConsoleRenderer.get_active().exception_formatter = structlog.dev.plain_traceback
