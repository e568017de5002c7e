"""Which schemas are requested, and for how long they are cached."""

from collections.abc import Callable
from typing import Any, cast
from uuid import UUID

import pytest

from odf_common.errors import InvalidInput
from odf_ingest.registry import Registries
from odf_ingest.registry import decoder as module
from odf_ingest.registry.client import Schema
from odf_ingest.registry.decoder import MAX_ID, RETRY_SECONDS, Decoder, SchemaUse
from odf_ingest.source_settings import SourceSettings

JSON = Schema(kind="JSON", text="{}")
GUID = UUID(int=5)


class Client:
    """Has a JSON schema under every name but those in `missing`."""

    def __init__(self) -> None:
        self.missing: set[int | UUID] = set()
        self.asked: list[int | UUID] = []

    def schema(self, name: int | UUID) -> Schema:
        self.asked.append(name)
        if name in self.missing:
            raise InvalidInput(text="does not exist")
        return JSON


def framed(id_: int, text: bytes = b"{}") -> bytes:
    return b"\0" + id_.to_bytes(4) + text


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def faults_of(client: Client) -> Callable[..., dict[int, str]]:
    decoder = Decoder(cast("Any", client))
    return lambda *values, **options: decoder.decode(values, **options)[1]


def test_only_an_id_of_31_bits_is_requested(client: Client, faults_of: Callable[..., dict[int, str]]) -> None:
    assert faults_of(framed(MAX_ID)) == {}
    assert "the id is too large" in faults_of(framed(MAX_ID + 1))[0]
    assert faults_of(framed(0)) == {}
    assert client.asked == [MAX_ID, 0]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (b"\0\0\0\0\x07", 7),
        (b"\x01" + GUID.bytes, GUID),
        (b"\0\0\0\0", None),
        (b"\x01" + GUID.bytes[:15], None),
    ],
)
def test_a_message_begins_with_the_whole_name_of_its_schema(
    client: Client, faults_of: Callable[..., dict[int, str]], value: bytes, name: object
) -> None:
    faults_of(value + b"{}" if name is not None else value)
    assert client.asked == ([] if name is None else [name])


def test_an_unusable_schema_is_requested_again_after_a_while(
    client: Client, faults_of: Callable[..., dict[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("odf_ingest.registry.decoder.time.monotonic", lambda: now[0])
    client.missing = {1}
    for pause, count in ((0.0, 1), (RETRY_SECONDS - 1, 1), (2.0, 2), (1.0, 2)):
        now[0] += pause
        assert "does not exist" in faults_of(framed(1))[0]
        assert client.asked == [1] * count
    client.missing = set()
    now[0] += RETRY_SECONDS + 1
    assert faults_of(framed(1)) == {}
    now[0] += 10 * RETRY_SECONDS
    assert faults_of(framed(1)) == {}
    assert client.asked == [1] * 3


def test_the_most_recently_used_schemas_are_kept(
    client: Client, faults_of: Callable[..., dict[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SCHEMAS", 2)
    faults_of(*map(framed, (1, 2, 1, 2)))
    assert client.asked == [1, 2]
    faults_of(*map(framed, (3, 2, 3, 1)))
    assert client.asked == [1, 2, 3, 1]
    faults_of(framed(3), use=SchemaUse(is_key=True))
    assert client.asked[-1] == 3, "keys are decoded otherwise"


def test_decoders_are_shared_by_address_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REGISTRIES", 2)
    registries = Registries()

    def of(name: str, **changes: str) -> Decoder:
        found = registries.decoder(SourceSettings(schema_registry=f"http://{name}").with_changes(changes))
        assert found is not None
        return found

    one = of("one")
    assert of("one") is one
    assert of("one", schemaRegistryUser="u", schemaRegistryPassword="p") is not one
    assert of("one") is one
    of("two")
    assert of("one") is one, "it was used later than the one with a user"
    of("three"), of("four")
    assert of("one") is not one
