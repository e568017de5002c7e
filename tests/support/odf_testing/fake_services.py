"""Services for the commands, without a node: each call is a function."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from odf_cli import clients


def fake_service(patch: pytest.MonkeyPatch, name: str, **calls: Callable[..., Any]) -> None:
    """Have commands that connect to a service of `clients` call these functions instead."""

    @contextmanager
    def opened(*_: object, **__: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(**calls)

    patch.setattr(clients, name, opened)
