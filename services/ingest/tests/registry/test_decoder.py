import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest
from odf_testing.black_hole import BlackHole, black_hole
from odf_testing.certificates import self_signed
from odf_testing.registry import Registered, Registry, avro, framed, framed_by_guid, serving_registry

from odf_common.resources.secret_text import Secret
from odf_ingest.errors import RegistryUnavailable
from odf_ingest.registry import Registries, client, decoder
from odf_ingest.registry.client import RegistryAddress, RegistryClient
from odf_ingest.source_settings import SourceSettings

ROW = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "long"}]}
GUID = UUID("89791762-2336-4186-9674-299b90a802e2")
PROTO = 'syntax = "proto3"; message Row { int64 id = 1; }'


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving_registry() as served:
        served.add(1, ROW)
        served.add_protobuf(2, PROTO)
        served.add(3, "{}", kind="JSON")
        yield served


def decode(
    registry: Registry, *values: bytes | None, **settings: str
) -> tuple[list[bytes | None], dict[int, str]]:
    chosen = SourceSettings(schema_registry=registry.url).with_changes(settings)
    made = Registries().decoder(chosen)
    assert made is not None
    texts, faults = made.decode(values)
    return list(texts), faults


def unavailable(action: Callable[[], object]) -> str:
    with pytest.raises(RegistryUnavailable) as refused:
        action()
    assert "odf source set" in refused.value.advice()
    return str(refused.value)


def test_a_source_without_a_registry_has_no_decoder() -> None:
    assert Registries().decoder(SourceSettings()) is None


def test_messages_of_each_kind_are_json(registry: Registry) -> None:
    values = (avro(1, ROW, {"id": 5}), framed(2, b"\0\x08\x05"), framed(3, b'{"id": 5.0}'), None)
    assert decode(registry, *values) == ([b'{"id":5}', b'{"id":5}', b'{"id": 5.0}', None], {})


def test_a_schema_is_fetched_once(registry: Registry) -> None:
    decode(registry, *[avro(1, ROW, {"id": one}) for one in range(5)], framed(9, b""), framed(9, b""))
    assert registry.asked == ["/schemas/ids/1", "/schemas/ids/9"]


def test_schemas_are_fetched_over_one_connection_until_an_answer_is_too_long_for_it(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {number: framed(number, b"") for number in (1, 2, 3, 99)}
    made = Registries().decoder(SourceSettings(schema_registry=registry.url))
    assert made is not None
    made.decode([values[1], values[2], values[99]])
    assert registry.connections == 1
    monkeypatch.setattr(client, "MAX_RESPONSE_BYTES", 10)
    monkeypatch.setattr(client, "PIECE_BYTES", 1)
    assert "is larger than" in made.decode([values[3]])[1][0]
    monkeypatch.undo()
    registry.add(4, ROW)
    made.decode([framed(4, b"")])
    assert registry.connections == 2


def test_a_schema_may_be_named_by_its_guid(registry: Registry) -> None:
    registry.guids |= {GUID: 1, UUID(int=2): 2}
    values = [framed_by_guid(GUID, b"\x0a"), framed_by_guid(UUID(int=2), b"\0\x08\x05")]
    assert decode(registry, *values, values[0]) == ([b'{"id":5}'] * 3, {})
    path = f"/schemas/guids/{UUID(int=2)}"
    assert registry.asked == [f"/schemas/guids/{GUID}", path, f"{path}?format=serialized"]


def test_an_unknown_guid_does_not_affect_other_messages(registry: Registry) -> None:
    unknown = framed_by_guid(UUID(int=3), b"\x0a")
    for guids in ({}, {GUID: 1}):  # the registry knows no GUIDs at all, or others
        registry.guids = guids
        texts, faults = decode(registry, unknown, unknown[:16], avro(1, ROW, {"id": 1}))
        assert texts == [None, None, b'{"id":1}']
        assert faults[0] == f"schema {UUID(int=3)}: does not exist in the schema registry"
        assert faults[1].startswith("has no schema id")


def test_what_cannot_be_decoded_is_named_by_its_schema(registry: Registry) -> None:
    registry.add(4, {"type": "array", "items": "null"})
    registry.add(5, "x", kind="THRIFT")
    registry.add(6, "x" * (5 << 20))
    values = {
        b"": "has no schema id",
        b"\0\0\0\0": "has no schema id",
        b'{"id":1}': "has no schema id",
        framed(99, b""): "schema 99: does not exist in the schema registry",
        framed(2**32 - 1, b""): "schema 4294967295: does not exist: the id is too large",
        framed(1, b"\x80"): "schema 1: the payload is not a value of the schema",
        framed(2, b"\0\x08"): "schema 2: the payload is not a message Row",
        framed(3, b"\xff"): "schema 3: the payload is not UTF-8 text",
        framed(4, b""): "schema 4: has an array or map",
        framed(5, b""): "schema 5: is of the type 'THRIFT'",
        framed(6, b""): "schema 6: is larger than 4 MiB",
    }
    texts, faults = decode(registry, *values, avro(1, ROW, {"id": 1}))
    assert texts == [*[None] * len(values), b'{"id":1}']
    for reason, expected in zip(faults.values(), values.values(), strict=True):
        assert reason.startswith(expected), reason


def test_a_schema_may_be_as_large_as_the_limit(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(json.dumps({"schema": json.dumps(ROW), "references": []}))
    monkeypatch.setattr(client, "MAX_RESPONSE_BYTES", size)
    monkeypatch.setattr(client, "PIECE_BYTES", 1)
    assert decode(registry, avro(1, ROW, {"id": 5}))[0] == [b'{"id":5}']
    monkeypatch.setattr(client, "MAX_RESPONSE_BYTES", size - 1)
    assert "is larger than" in decode(registry, avro(1, ROW, {"id": 5}))[1][0]


def test_a_missing_schema_is_requested_again(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Registries().decoder(SourceSettings(schema_registry=registry.url))
    assert made is not None
    value = avro(7, ROW, {"id": 1})
    assert "does not exist" in made.decode([value])[1][0]
    registry.add(7, ROW)
    assert "does not exist" in made.decode([value])[1][0]
    later = time.monotonic() + decoder.RETRY_SECONDS + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert list(made.decode([value])[0]) == [b'{"id":1}']


def test_the_oldest_schemas_are_forgotten(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "MAX_SCHEMAS", 2)
    for number in (11, 12, 13):
        registry.add(number, ROW)
    decode(registry, *[avro(number, ROW, {"id": 1}) for number in (11, 12, 13, 13, 11)])
    assert registry.asked == [f"/schemas/ids/{number}" for number in (11, 12, 13, 11)]


def test_schemas_that_others_refer_to_are_fetched(registry: Registry) -> None:
    registry.add(
        8,
        {**ROW, "fields": [{"name": "at", "type": "odf.Place"}]},
        references=[{"name": "odf.Place", "subject": "a/b c", "version": 3}],
    )
    place = {"type": "record", "name": "odf.Place", "fields": [{"name": "x", "type": "int"}]}
    registry.subjects["a%2Fb%20c", 3] = Registered(text=json.dumps(place))
    assert decode(registry, framed(8, b"\x02"))[0] == [b'{"at":{"x":1}}']


def test_a_schema_that_several_others_refer_to_is_fetched_once(registry: Registry) -> None:
    def place(name: str, type_: str, *refers: str) -> None:
        schema = {"type": "record", "name": f"odf.{name}", "fields": [{"name": "x", "type": type_}]}
        references = [{"name": f"odf.{one}", "subject": one, "version": 1} for one in refers]
        registry.subjects[name, 1] = Registered(text=json.dumps(schema), references=references)

    place("C", "int")
    for name in ("A", "B"):
        place(name, "odf.C", "C")
    references = [{"name": f"odf.{one}", "subject": one, "version": 1} for one in ("A", "B")]
    fields = [{"name": "a", "type": "odf.A"}, {"name": "b", "type": "odf.B"}]
    registry.add(8, {**ROW, "fields": fields}, references=references)
    assert decode(registry, framed(8, b"\x02\x04"))[0] == [b'{"a":{"x":{"x":1}},"b":{"x":{"x":2}}}']
    assert [path.split("/")[2] for path in registry.asked[1:]] == ["A", "C", "B"]


@pytest.mark.parametrize(
    "references",
    [
        "x",
        ["x"],
        [{"name": "a", "subject": "s"}],
        [{"name": "a", "subject": "loop", "version": 1}],
        [{"name": "a", "subject": "missing", "version": 1}],
        [{"name": str(one), "subject": "s", "version": 1} for one in range(100)],
    ],
    ids=range(6),
)
def test_references_that_lead_nowhere_are_refused(
    registry: Registry, references: list[dict[str, object]]
) -> None:
    endless = [{"name": f"a{one}", "subject": "loop", "version": 1} for one in range(2)]
    registry.subjects["loop", 1] = Registered(text=json.dumps(ROW), references=endless)
    registry.add(8, ROW, references=references)
    faults = decode(registry, framed(8, b"\x02"))[1]
    assert faults[0].startswith("schema 8: ")
    assert len(registry.asked) <= client.MAX_REFERENCES + 2


def test_a_registry_that_is_down_does_not_reject_messages(registry: Registry) -> None:
    value = avro(1, ROW, {"id": 1})
    for status in (500, 503, 429, 404, 302, 422):
        registry.fails = status
        assert f"with status {status}" in unavailable(lambda: decode(registry, value))
    registry.fails = 401
    assert "refuses the credentials" in unavailable(lambda: decode(registry, value))
    registry.fails = 0
    for body in (b"no json", b"[]", b'{"schema": 7}', b"[" * 100_000):
        registry.answer = body
        assert "is not a schema" in unavailable(lambda: decode(registry, value))


def test_a_trickling_response_times_out(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "BODY_SECONDS", 0.2)
    registry.pause = 0.05
    assert "more than 0.2 s for an answer" in unavailable(lambda: decode(registry, avro(1, ROW, {"id": 1})))


def test_an_address_where_nothing_listens_is_named() -> None:
    with serving_registry() as gone:
        pass
    reason = unavailable(lambda: decode(gone, framed(1, b"")))
    assert reason.startswith(f"schema registry {gone.url} gives no schema: ")
    assert "0x" not in reason
    assert "HTTPConnection" not in reason


def test_credentials_are_sent_and_never_shown(registry: Registry) -> None:
    registry.login = "me:se:cret"
    value = avro(1, ROW, {"id": 1})
    login = {"schemaRegistryUser": "me", "schemaRegistryPassword": "se:cret"}
    assert decode(registry, value, **login) == ([b'{"id":1}'], {})
    assert "refuses the credentials" in unavailable(lambda: decode(registry, value))
    wrong = {**login, "schemaRegistryPassword": "hush-hush"}
    assert "hush" not in unavailable(lambda: decode(registry, value, **wrong))
    settings = SourceSettings(schema_registry=registry.url).with_changes(wrong)
    assert "hush" not in repr(settings) + str(settings.shown()) + repr(Secret("hush"))


def test_https_needs_a_certificate_that_the_ca_file_vouches_for(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)
    value = avro(1, ROW, {"id": 1})
    with serving_registry(certificate=certificate) as registry:
        registry.add(1, ROW)
        assert decode(registry, value, schemaRegistryCa=str(certificate[0])) == ([b'{"id":1}'], {})
        refused = unavailable(lambda: decode(registry, value))
        assert "set schemaRegistryCa to the file of its authority" in refused
        assert "CERTIFICATE_VERIFY_FAILED" in refused
        missing = str(tmp_path / "missing.pem")
        assert missing in unavailable(lambda: decode(registry, value, schemaRegistryCa=missing))


LATE_SECONDS = 20.0  # five, and what a busy machine adds


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
