"""Tests of commands leave the umask as it was: the next test has its own expectations of modes."""

import os
from collections.abc import Iterator

import pytest

from odf_common.adapters.local import durable


@pytest.fixture(autouse=True)
def first_umask() -> Iterator[None]:
    """Restore the umask that a command in this process has changed."""
    before = os.umask(0)
    os.umask(before)
    yield
    durable._STARTED_WITH.clear()
    os.umask(before)
