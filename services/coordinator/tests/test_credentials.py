"""Credentials in polling sources are refused before they get into a chain; those of other nodes' chains are reported."""

import time
from dataclasses import fields, is_dataclass, replace
from types import SimpleNamespace
from typing import Any, Final, cast, get_args

import grpc
import pytest
import yaml
from odf_testing.builders import a_polling_source
from odf_testing.coordinator import Coordinator, forget, stored
from odf_testing.story import POLLING

from odf_common.codec.manifests import snapshots_from_text
from odf_common.dataset.plain_credentials import SEARCHED_FIELDS, Credential, credentials_in, places_of
from odf_common.errors import InvalidInput
from odf_common.metadata.events import SetInfo
from odf_common.metadata.fetching import (
    EnvVar,
    EventTimeSource,
    FetchStep,
    FetchStepContainer,
    FetchStepEthereumLogs,
    FetchStepFilesGlob,
    FetchStepMqtt,
    FetchStepUrl,
    MqttTopicSubscription,
    PrepStep,
    PrepStepDecompress,
    PrepStepPipe,
    RequestHeader,
)
from odf_common.proto.odf.node.v1 import coordinator_pb2 as wire
from odf_coordinator.api.grpc_servicer import Servicer

CONTEXT: Final = cast("grpc.ServicerContext", SimpleNamespace(is_active=lambda: True))
SECRET: Final = "hush4hush4hush4hush4"
KEY: Final = "0a1b2c3d4e5f60718293a4b5c6d7e8f9"
TOPICS: Final = (MqttTopicSubscription(path="a"),)
WITHOUT_SECRETS: Final = {
    (FetchStepFilesGlob, "path"),  # of this machine
    (FetchStepContainer, "image"),
    (FetchStepMqtt, "username"),
    (FetchStepEthereumLogs, "filter"),  # SQL
    (FetchStepEthereumLogs, "signature"),  # of an event
    (RequestHeader, "name"),
    (EnvVar, "name"),
    (MqttTopicSubscription, "path"),
    (PrepStepDecompress, "sub_path"),
    *((kind, field.name) for kind in get_args(EventTimeSource) for field in fields(kind)),
}


def found(fetch: FetchStep, *prepare: PrepStep) -> tuple[Credential, ...]:
    return credentials_in(replace(a_polling_source(), fetch=fetch, prepare=prepare or None))


def of_url(url: str) -> list[str]:
    return [one.what for one in found(FetchStepUrl(url=url))]


def of_header(name: str, value: str) -> bool:
    return bool(found(FetchStepUrl(url="http://a", headers=(RequestHeader(name=name, value=value),))))


def of_command(*words: str) -> list[str]:
    return [one.path for one in found(FetchStepUrl(url="http://a"), PrepStepPipe(command=words))]


def strings(kind: Any, seen: set[tuple[type, str]]) -> set[tuple[type, str]]:
    """Return the fields of a type, and of what it has, that hold strings."""
    for part in (*get_args(kind), kind):
        if is_dataclass(part) and isinstance(part, type):
            for field in fields(part):
                if "str" in str(field.type):
                    seen.add((part, field.name))
                strings(field.type, seen)
        elif part is not kind:
            strings(part, seen)
    return seen


def test_every_string_of_every_step_is_searched_or_has_no_secrets() -> None:
    assert strings(FetchStep | PrepStep, set()) == {*SEARCHED_FIELDS} | WITHOUT_SECRETS


@pytest.mark.parametrize(
    "url",
    [
        "https://ann:pa55@example.org/a",
        "https://${{ env.USER }}:pa55@example.org/a",
        "ftp://ann:p%40ss@example.org/a",
        "https://:pa55@example.org/a",
        f"https://{SECRET}@example.org/a",
        "https://example.org/a?token=QTOK",
        "https://example.org/a?x=1&access_token=abc",
        "https://example.org/a?clientsecret=abc",
        "https://example.org/a?refreshtoken=abc",
        "https://example.org/a?apiKey=abc&x=1",
        "https://example.org/a?api_key=${{ env.KEY || 'abc' }}",
        "https://example.org/a?x-api-key=abc",
        "https://example.org/a?PASSWORD=abc",
        "https://example.org/a?client_secret=abc",
        "https://example.org/a?sv=2024&sig=abc%3D",
        "https://example.org/a?X-Amz-Signature=abc",
        "https://example.org/a?X-Amz-Credential=AK",
        "https://example.org/a?credential=abc",
        "https://example.org/a?user=ann&pass=abc",
        "https://example.org/a?pw=abc",
        "https://example.org/a?sessionid=abc",
        f"https://example.org/api/report?code={KEY}Az==",
        "https://example.org/a;token=abc/b",
        "https://example.org/a;v=1;jsessionid=abc?x=1",
        "https://example.org/a#access_token=abc",
        f"https://example.org/a?key={KEY}",
        f"https://example.org/a?appid={KEY}",
        "${{ env.FEED || 'https://ann:pa55@example.org/' }}",
    ],
)
def test_urls_with_credentials_are_found(url: str) -> None:
    (what,) = of_url(url)
    assert what.startswith("the ")


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/a",
        "https://ann@example.org/a",
        "ftp://anonymous:me%40example.org@example.org/a",
        "ftp://ann:${{ env.FTP_PASSWORD }}@example.org/a",
        "https://example.org/a?token=${{ env.TOKEN }}&x=1",
        "https://example.org/a?token=${{ env.TOKEN || env.OTHER }}",
        "https://example.org/a?token=${{env.TOKEN||''}}",
        "https://example.org/a?api_key=DEMO_KEY",
        "https://example.org/a?token=",
        "https://example.org/a?key=city",
        "https://example.org/a?key=population_by_municipality",
        "https://example.org/a?code=une_rt_m_2020_total&passes=1&credentialed=yes",
        "https://example.org/a;v=1;token=${{ env.TOKEN }}/b;type=a",
        "https://example.org/a?sort_key=id&primary_key=year2020population1",
        "https://example.org/a?pageToken=abc123&next_token=4&nexttoken=abc123",
        "https://example.org/a?tokens=4&keyword=secret&keys=a,b&secretary=ann&passwords_changed=1",
        "https://example.org/a?signature_count=4&hex_signature=0xddf252ad",
        f"https://example.org/{KEY}/a.csv",
        "${{ env.FEED }}",
        "https://[example.org/a?token=4",
        "file:///data/token=4/a.csv",
    ],
)
def test_other_urls_pass(url: str) -> None:
    assert of_url(url) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Authorization", "Bearer HDRTOK"),
        ("authorization", "Basic YTpi"),
        ("Proxy-Authorization", "Basic YTpi"),
        ("Cookie", "session=abc"),
        ("X-Auth", "abc"),
        ("X-Authorization", "Bearer abc"),
        ("Authentication", "abc"),
        ("X-Session-Id", "abc"),
        ("X-Api-Key", "abc"),
        ("PRIVATE-TOKEN", "abc"),
        ("X-Auth-Token", "abc"),
        ("Ocp-Apim-Subscription-Key", "abc"),
        ("Authorization", "Bearer ${{ env.T || 'abc' }}"),
    ],
)
def test_headers_with_credentials_are_found(name: str, value: str) -> None:
    assert of_header(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Authorization", "Bearer ${{ env.TOKEN }}"),
        ("Authorization", "${{ env.TOKEN }}"),
        ("Cookie", "lang=en; session=${{ env.SESSION }}"),
        ("X-Api-Key", "${{ env.KEY }}"),
        ("Accept", "text/csv"),
        ("User-Agent", "weather/1.0 ann@example.org"),
        ("Idempotency-Key", KEY),
        ("X-Tokens", "4"),
    ],
)
def test_other_headers_pass(name: str, value: str) -> None:
    assert not of_header(name, value)


@pytest.mark.parametrize(
    "command",
    [
        ("fetch", "--password=abc"),
        ("fetch", "--api-key", "abc"),
        ("curl", "-H", "Authorization: Bearer abc", "http://a"),
        ("curl", "-HAuthorization: Bearer abc", "http://a"),
        ("wget", "--header=X-Api-Key: abc", "http://a"),
        ("curl", "-u", "ann:abc", "http://a"),
        ("curl", "https://ann:abc@example.org/"),
        ("sh", "-c", "curl -H 'X-Api-Key: abc' http://a | jq ."),
        ("sh", "-c", "PGPASSWORD=a TOKEN=abc psql"),
        ("sh", "-c", "fetch --token abc > out"),
    ],
)
def test_commands_with_credentials_are_found(command: tuple[str, ...]) -> None:
    paths = of_command(*command)
    assert len(paths) == (2 if "PGPASSWORD" in command[-1] else 1)
    assert all(path.startswith("prepare[0].command[") for path in paths)


@pytest.mark.parametrize(
    "command",
    [
        ("jq", "-c", ".[]"),
        ("jq", "-c", "{token: .token, key: .api_key}"),
        ("jq", "--arg", "token", "x", "."),
        ("sort", "--key", "2", "-t", ","),
        ("fetch", "--token-file", "/run/secrets/a"),
        ("fetch", "--password", "--verbose"),
        ("sh", "-c", 'curl -H "Authorization: $(cat /run/secrets/a)" http://a'),
        ("sh", "-c", "fetch --token $TOKEN"),
        ("sh", "-c", "it's"),
        ("sed", "s/token=[^&]*//"),
        ("awk", "-F:", "{print $1}"),
    ],
)
def test_other_commands_pass(command: tuple[str, ...]) -> None:
    assert of_command(*command) == []


def test_variables_and_commands_of_containers_are_searched() -> None:
    env = (
        EnvVar(name="NODE_URL"),
        EnvVar(name="API_KEY"),
        EnvVar(name="VERBOSE", value="1"),
        EnvVar(name="DB_PASSWORD", value="${{ env.DB }}"),
        EnvVar(name="GITHUB_TOKEN", value="abc"),
    )
    step = FetchStepContainer(image="a", env=env, args=("--token", "abc"), command=("run", "--secret=abc"))
    assert [one.path for one in found(step)] == ["fetch.command[1]", "fetch.args[0]", "fetch.env[4].value"]
    assert found(step)[2].instead == "leave its value out, and start the node with this variable"


def test_passwords_of_brokers_and_keys_of_nodes_are_found() -> None:
    broker = FetchStepMqtt(host="h", port=1, username="ann", password="abc", topics=TOPICS)
    assert [one.path for one in found(broker)] == ["fetch.password"]
    assert found(replace(broker, password="${{ env.P }}")) == found(replace(broker, password=None)) == ()
    assert [one.path for one in found(replace(broker, password=None, host="mqtt://ann:abc@h"))] == [
        "fetch.host"
    ]
    for node in (f"https://mainnet.example.org/v3/{KEY}", "https://ann:abc@example.org"):
        assert [one.path for one in found(FetchStepEthereumLogs(node_url=node))] == ["fetch.nodeUrl"]
    assert found(FetchStepEthereumLogs(node_url="https://rpc.example.org/mainnet")) == ()


def test_other_events_have_none() -> None:
    assert credentials_in(SetInfo(description="https://ann:abc@example.org?token=abc")) == ()
    assert credentials_in(None) == ()


HEADERS: Final = [{"name": "Authorization", "value": "Bearer HDRTOK"}]
REFUSED: Final = [
    ({"kind": "Url", "url": "http://u:URLPASS@example.org/a?token=QTOK"}, "fetch.url", "${{ env.PASSWORD }}"),
    (
        {"kind": "Url", "url": "http://example.org/a?token=QTOK"},
        "fetch.url",
        "write token=${{ env.TOKEN }} instead, and",
    ),
    (
        {"kind": "Url", "url": "http://example.org/a", "headers": HEADERS},
        "fetch.headers[0].value",
        "write Bearer ${{ env.TOKEN }} instead,",
    ),
    (
        {"kind": "Mqtt", "host": "h", "port": 1, "password": "MQTTPASS", "topics": [{"path": "a"}]},
        "fetch.password",
        "${{ env.PASSWORD }}",
    ),
]


def manifest(fetch: object) -> str:
    source = yaml.safe_load(POLLING)[0] | {"fetch": fetch}
    content = {"name": "cities", "kind": "Root", "metadata": [source]}
    return yaml.safe_dump({"kind": "DatasetSnapshot", "version": 1, "content": content})


def is_secret_in(text: str) -> bool:
    return any(secret in text for secret in ("URLPASS", "QTOK", "HDRTOK", "MQTTPASS"))


@pytest.mark.parametrize(("fetch", "path", "advice"), REFUSED)
def test_a_manifest_with_a_credential_is_refused_with_its_place_and_what_to_write(
    node: Coordinator, fetch: object, path: str, advice: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        node.add(manifest(fetch))
    said = f"{refused.value} {refused.value.advice()}"
    assert f"cities: content.metadata[0].{path}: " in said
    assert "m0.yaml:" in said
    assert "is a credential, and all who read the dataset get its chain, for ever" in said
    assert advice in said
    assert not is_secret_in(said)
    assert node.datasets.catalog.by_alias("cities") is None


def test_all_places_of_a_source_are_named(node: Coordinator) -> None:
    fetch = {"kind": "Url", "url": "http://example.org/a?token=QTOK", "headers": HEADERS}
    with pytest.raises(
        InvalidInput, match=r"\(the same holds for the header Authorization \(fetch\.headers\[0\]\.value\)\)"
    ):
        node.add(manifest(fetch))


@pytest.mark.parametrize(("fetch", "path", "advice"), REFUSED)
def test_a_committed_or_replaced_source_with_a_credential_is_refused(
    node: Coordinator, fetch: object, path: str, advice: str
) -> None:
    del path, advice
    node.add(manifest({"kind": "Url", "url": "http://example.org/a?token=${{ env.TOKEN }}"}))
    before = node.find("cities").state
    with pytest.raises(InvalidInput, match="is a credential"):
        node.add(manifest(fetch), replace=True)
    (written,) = snapshots_from_text(manifest(fetch).encode(), "a")
    (event,) = written.metadata
    with pytest.raises(InvalidInput, match="is a credential"):
        node.editor.commit_event("cities", event)
    assert node.find("cities").state == before


SOURCE: Final = a_polling_source("https://ann:URLPASS@example.org/a?token=QTOK")


def describe(node: Coordinator) -> wire.DatasetSummary:
    servicer = Servicer(node.parts)
    (listed,) = servicer.List(wire.ListRequest(), CONTEXT).datasets
    assert servicer.Describe(wire.DescribeRequest(ref="cities"), CONTEXT).exposed == listed.exposed
    return listed


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_chain_that_has_credentials_already_is_reported_without_them(
    node: Coordinator, *, is_ours: bool
) -> None:
    node.add(manifest({"kind": "Url", "url": "http://example.org/a?token=${{ env.TOKEN }}"}))
    known = node.find("cities")
    assert describe(node).exposed == describe(node).exposed_remedy == ""
    after = stored(node, known.state, SOURCE)
    if not is_ours:
        forget(node, known)
    before = known.state.head if is_ours else None
    node.importer.import_chain(
        known.id, expected_head=before, new_head=after.head, alias="cities", may_define=True
    )
    listed = describe(node)
    assert node.find("cities").state.head == after.head, "what others wrote is not refused"
    assert listed.exposed == "the password in the URL (fetch.url), the parameter token of the URL (fetch.url)"
    assert ("odf commit" in listed.exposed_remedy) == is_ours
    assert ("its owner should have them replaced" in listed.exposed_remedy) == (not is_ours)
    assert not is_secret_in(str(listed))


def test_a_manifest_that_is_in_the_chain_already_is_unchanged(node: Coordinator) -> None:
    node.add(manifest({"kind": "Url", "url": "http://example.org/a"}))
    known = node.find("cities")
    after = stored(node, known.state, SOURCE)
    node.importer.import_chain(
        known.id, expected_head=known.state.head, new_head=after.head, alias="", may_define=True
    )
    fetch = {"kind": "Url", "url": "https://ann:URLPASS@example.org/a?token=QTOK"}
    assert [one.outcome for one in node.add(manifest(fetch))] == ["unchanged"]


def test_many_credentials_are_counted(node: Coordinator) -> None:
    headers = tuple(RequestHeader(name=f"X-{number}-Token", value="abc") for number in range(8))
    named = places_of(found(FetchStepUrl(url="http://a", headers=headers)))
    assert named.count("the header") == 5
    assert named.endswith(" and 3 more")


@pytest.mark.parametrize(
    "text", ["a" * 200_000, "${{" * 60_000, "a://" * 40_000, "'" * 100_000, "a=b&" * 50_000]
)
def test_chains_of_others_are_searched_in_bounded_time(text: str) -> None:
    began = time.monotonic()
    found(FetchStepUrl(url="http://a?" + text), PrepStepPipe(command=(text, text)))
    assert time.monotonic() - began < 10


def test_credentials_of_a_source_that_was_replaced_are_still_in_the_chain(node: Coordinator) -> None:
    node.add(manifest({"kind": "Url", "url": "http://example.org/a?token=${{ env.TOKEN }}"}))
    known = node.find("cities")
    clean = known.state.polling_source
    assert clean is not None
    after = stored(node, known.state, SOURCE)
    node.importer.import_chain(
        known.id, expected_head=known.state.head, new_head=after.head, alias="cities", may_define=True
    )
    assert "in block" not in describe(node).exposed, "the source in force shows them"
    node.propose(node.find("cities"), [clean])
    listed = describe(node)
    number = after.sequence_number
    assert listed.exposed.startswith(f"in block {number}: the password in the URL (fetch.url)")
    assert "`odf access set cities --visibility private`" in listed.exposed_remedy
    assert not is_secret_in(str(listed))
