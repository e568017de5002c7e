"""Transfers are repeated at once: as often as a node repeats them, without its pauses."""

from collections.abc import Iterator

import pytest

from odf_sync.repositories import http_dataset
from odf_sync.transfer import push_source


@pytest.fixture(autouse=True, scope="session")
def _short_pauses() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for retry in (http_dataset.READ_RETRY, push_source.UPLOAD_RETRY):
            patch.setattr(retry, "backoff_factor", 0.01)
        yield
