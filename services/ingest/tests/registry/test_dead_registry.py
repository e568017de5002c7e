"""A schema registry that goes away without a word: a fetch ends soon, and the next one opens another connection."""

import time
from collections.abc import Callable

import pytest
from odf_testing.black_hole import BlackHole, black_hole
from odf_testing.registry import serving_registry

from odf_ingest.errors import RegistryUnavailable
from odf_ingest.registry.client import RegistryAddress, RegistryClient

LATE_SECONDS = 20.0  # five, and what a busy machine adds
ROW = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "long"}]}


@pytest.mark.parametrize("breaks", [BlackHole.swallow, BlackHole.drop])
def test_a_schema_is_fetched_again_after_the_registry_was_away(breaks: Callable[[BlackHole], None]) -> None:
    with serving_registry() as registry, black_hole(int(registry.url.rpartition(":")[2])) as hole:
        registry.add(1, ROW)
        client = RegistryClient(RegistryAddress(url=f"http://{hole.address}"))
        schema = client.schema(1)
        breaks(hole)
        for _ in ("on the connection that died", "on a new one"):
            begun = time.monotonic()
            with pytest.raises(RegistryUnavailable):
                client.schema(1)
            assert time.monotonic() - begun < LATE_SECONDS
        hole.restore()
        assert client.schema(1) == schema
