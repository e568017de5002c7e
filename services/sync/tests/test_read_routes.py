"""Reads over HTTP without a copy: lists of datasets, last records, definitions."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import urlopen

import pyarrow as pa
import pytest
import urllib3
from odf_testing.builders import a_chain, a_dataset, a_seed
from odf_testing.http import running
from odf_testing.memory_store import hold, in_memory
from odf_testing.recorded_cases import Side, plays
from odf_testing.recorded_clients import JSON, answered, play_client
from odf_testing.recorded_node import CITIES, recorded_node
from odf_testing.recorded_transfers import all_recorded, lines_of
from odf_testing.sync_node import SyncNode

from odf_common.chain.state import ChainState
from odf_common.codec.flatbuffers import decode_block
from odf_common.data.slices import write_slice
from odf_common.errors import StorageUnavailable
from odf_common.identity.dataset_refs import DatasetId, Name
from odf_common.metadata.events import AddData, SetInfo
from odf_common.ports.store import ObjectKind, incarnation
from odf_sync import search
from odf_sync.access.access_store import AccessStore
from odf_sync.access.directory import Directory
from odf_sync.access.rules import Role, Visibility
from odf_sync.http import read_routes
from odf_sync.http.authorization import Authorizer
from odf_sync.http.endpoints import application
from odf_sync.http.read_routes import NO_QUERIES, ListRoutes, parquet_schema
from odf_sync.search import OwnDatasets

RECORDED_COLUMNS: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("op", pa.int32(), nullable=False),
        pa.field("system_time", pa.timestamp("ms", "UTC"), nullable=False),
        pa.field("event_time", pa.timestamp("ms", "UTC"), nullable=False),
        pa.field("city", pa.string(), nullable=False),
        ("population", pa.int64()),
        ("area", pa.float64()),
        pa.field("founded", pa.date32(), nullable=False),
        ("capital", pa.bool_()),
    ]
)


@plays(Side.SERVER)
def test_our_server_answers_reads_as_recorded(tmp_path: Path, case: str) -> None:
    there = recorded_node(tmp_path, lines_of(case), all_recorded())
    add_newest_records(there.node, tmp_path / "slice")

    with there.served() as base:
        asyncio.run(play_client(base, there.lines))


def add_newest_records(node: SyncNode, file: Path) -> None:
    """Store the records of the recorded answer under the name of the newest slice, whose bytes no recording has."""
    same = {
        "system_time": datetime(2026, 11, 21, 1, 7, 45, 420_000, tzinfo=UTC),
        "city": "Vancouver",
        "area": 115.18,
        "founded": date(1886, 4, 6),
        "capital": False,
    }
    newest = [
        {"offset": 15, "op": 2, "event_time": datetime(2026, 1, 5, tzinfo=UTC), "population": 720_000},
        {"offset": 16, "op": 3, "event_time": datetime(2026, 1, 6, tzinfo=UTC), "population": 730_000},
    ]
    write_slice(pa.Table.from_pylist([{**same, **row} for row in newest], schema=RECORDED_COLUMNS), file)
    entry, head = node.catalog.by_alias(CITIES), node.head(CITIES)
    assert entry is not None
    assert head is not None
    event = decode_block(node.blobs.read(entry.dataset_id, ObjectKind.BLOCK, head)).block.event
    assert isinstance(event, AddData)
    assert event.new_data is not None
    node.blobs.put_file(entry.dataset_id, ObjectKind.DATA, event.new_data.physical_hash, file)


@plays(Side.SERVER)
def test_queries_are_refused_as_by_a_node_without_a_signing_key(tmp_path: Path, case: str) -> None:
    lines, refusal = lines_of(case), json.dumps({"message": NO_QUERIES})
    for conn in {line["conn"] for line in lines}:
        lines = answered(lines, conn, status=501, headers={"content-type": JSON}, body=refusal)
    there = recorded_node(tmp_path, lines, all_recorded())

    with there.served() as base:
        asyncio.run(play_client(base, there.lines))


def ask(url: str) -> tuple[int, Any]:
    try:
        with urlopen(url) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.loads(error.read() or b"null")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> SyncNode:
    node = SyncNode(tmp_path_factory.mktemp("home"))
    node.add_cities(["Oslo", "Kyiv"], ["Lima"])
    return node


@pytest.fixture(scope="module")
def url(node: SyncNode) -> Iterator[str]:
    with node.served() as base:
        yield f"{base}/cities"


@pytest.mark.parametrize(
    ("query", "cities"),
    [
        ("", ["Oslo", "Kyiv", "Lima"]),
        ("?limit=2", ["Kyiv", "Lima"]),
        ("?limit=1&skip=1", ["Kyiv"]),
        ("?limit=5&skip=2", ["Oslo"]),
        ("?skip=3", []),
    ],
)
def test_a_tail_is_in_offset_order_across_slices(url: str, query: str, cities: list[str]) -> None:
    status, answer = ask(f"{url}/tail{query}")

    assert (status, answer["dataFormat"]) == (200, "JsonAoS")
    assert [row["city"] for row in answer["data"]] == cities


def test_a_tail_is_laid_out_as_asked(url: str) -> None:
    (row,) = ask(f"{url}/tail?limit=1")[1]["data"]
    columns = ask(f"{url}/tail?limit=1&dataFormat=JsonSoA")[1]["data"]
    (values,) = ask(f"{url}/tail?limit=1&dataFormat=JsonAoA")[1]["data"]

    assert row["offset"] == 2
    assert columns == {name: [value] for name, value in row.items()}
    assert values == list(row.values())


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("tail?limit=0", "limit: expected a number from 1 to 10000, got '0'"),
        ("tail?limit=10001", "limit: expected a number from 1 to 10000, got '10001'"),
        ("tail?limit=-1", "limit: expected a number from 1 to 10000, got '-1'"),
        ("tail?limit=1e3", "limit: expected a number from 1 to 10000, got '1e3'"),
        ("tail?limit=%D9%A1", "limit: expected a number from 1 to 10000, got '١'"),
        ("tail?skip=999999999999", "skip: expected a number from 0 to 10000, got '999999999999'"),
        ("tail?dataFormat=Csv", "expected one of JsonAoS, JsonSoA, JsonAoA, got 'Csv'"),
        ("tail?schemaFormat=ArrowJson", "expected one of Parquet, got 'ArrowJson'"),
        (
            "metadata?include=Seed,Secret",
            "expected one of Attachments, Info, License, Refs, Schema, Seed, Vocab, got 'Secret'",
        ),
    ],
)
def test_what_is_not_known_is_refused_by_name(url: str, path: str, text: str) -> None:
    assert ask(f"{url}/{path}") == (400, {"message": text})


def test_records_of_too_many_bytes_are_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_routes, "MAX_ANSWER_BYTES", 50)

    status, answer = ask(f"{url}/tail")

    assert status == 400
    assert "set a lower limit" in answer["message"]


def test_all_definitions_of_a_dataset_are_read(node: SyncNode, url: str) -> None:
    status, answer = ask(f"{url}/metadata?include=Seed,Vocab,Info,License,Attachments,Refs,Schema")

    assert status == 200
    assert set(answer["output"]) == {"seed", "vocab", "refs", "schema"}  # it has no others
    assert answer["output"]["refs"] == [{"name": "head", "blockHash": str(node.head("cities"))}]


def test_a_dataset_without_records_has_an_empty_tail(tmp_path: Path) -> None:
    node = SyncNode(tmp_path)
    node.add_cities()

    with node.served() as base:
        assert ask(f"{base}/cities/tail?schemaFormat=Parquet") == (200, {"data": [], "dataFormat": "JsonAoS"})


def test_data_that_is_not_here_is_not_found(tmp_path: Path) -> None:
    node = SyncNode(tmp_path)
    node.add_cities(["Oslo"])
    for file in tmp_path.glob("datasets/*/data/*"):
        file.unlink()

    with node.served() as base:
        assert ask(f"{base}/cities/tail") == (404, {"message": "the data of cities is not on this node"})


def test_parquet_shows_every_kind_of_column() -> None:
    schema = pa.schema(
        [
            pa.field("offset", pa.int64(), nullable=False),
            ("op", pa.uint8()),
            ("at", pa.timestamp("us", "UTC")),
            ("local", pa.timestamp("ns")),
            ("time", pa.time32("ms")),
            ("price", pa.decimal128(10, 2)),
            ("key", pa.binary(8)),
            ("raw", pa.binary()),
            ("tags", pa.list_(pa.string())),
            ("odd (name)", pa.struct([("x", pa.float32())])),
        ]
    )

    assert parquet_schema(schema).splitlines() == [
        "message arrow_schema {",
        "  REQUIRED INT64 offset;",
        "  OPTIONAL INT32 op (INTEGER(8,false));",
        "  OPTIONAL INT64 at (TIMESTAMP(MICROS,true));",
        "  OPTIONAL INT64 local (TIMESTAMP(NANOS,false));",
        "  OPTIONAL INT32 time (TIME(MILLIS,false));",
        "  OPTIONAL FIXED_LEN_BYTE_ARRAY(5) price (DECIMAL(10,2));",
        "  OPTIONAL FIXED_LEN_BYTE_ARRAY(8) key;",
        "  OPTIONAL BYTE_ARRAY raw;",
        "  OPTIONAL group tags (LIST) {",
        "    REPEATED group list {",
        "      OPTIONAL BYTE_ARRAY element (STRING);",
        "    }",
        "  }",
        "  OPTIONAL group odd (name) {",
        "    OPTIONAL FLOAT x;",
        "  }",
        "}",
    ]


Headers = Mapping[str, str]
DATASETS = {
    "alice/open": Visibility.PUBLIC,
    "alice/shared": Visibility.PRIVATE,
    "alice/secret": Visibility.PRIVATE,
    "orphan": Visibility.PUBLIC,
}


class Node:
    """A server of the list alone."""

    def __init__(self, home: Path, *, is_multi_tenant: bool) -> None:
        self.datasets = in_memory()
        self.directory = Directory(AccessStore(home), is_multi_tenant=is_multi_tenant, datasets=self.datasets)
        authorizer = Authorizer(
            catalog=self.datasets.catalog, local_writers="loopback", directory=self.directory
        )
        routes = ListRoutes(OwnDatasets(datasets=self.datasets, in_bucket=False), authorizer)
        self.app = application(authorizer, tuple(routes.endpoints()))
        self.base = ""
        for name, visibility in DATASETS.items():
            hold(
                self.datasets,
                name,
                a_chain(a_seed(dataset=a_dataset(name)), SetInfo(description=f"about {name}")),
            )
            self.directory.store.set_visibility(incarnation(a_dataset(name), ""), visibility)

    def token(self, name: str, **limits: Any) -> Headers:
        token, _ = self.directory.create_token(Name(name), label="", **limits)
        return {"Authorization": f"Bearer {token.text()}"}

    def ask(self, headers: Headers, query: str = "") -> urllib3.BaseHTTPResponse:
        return urllib3.request("GET", f"{self.base}/datasets{query}", headers=dict(headers), retries=False)

    def names(self, headers: Headers) -> list[str]:
        return [one["name"] for one in json.loads(self.ask(headers).data)["datasets"]]


@pytest.fixture
def listing_node(tmp_path: Path) -> Iterator[Node]:
    listing_node = Node(tmp_path, is_multi_tenant=True)
    for name in ("alice", "reader", "stranger"):
        listing_node.directory.add_account(Name(name), None)
    reader = listing_node.directory.store.account(Name("reader"))
    listing_node.directory.store.set_role(incarnation(a_dataset("alice/shared"), ""), reader, Role.READER)
    with running(listing_node.app) as listing_node.base:
        yield listing_node


def test_each_caller_sees_what_they_may_read(listing_node: Node) -> None:
    everything = ["alice/open", "alice/secret", "alice/shared"]
    assert listing_node.names({}) == ["alice/open"]
    assert listing_node.names(listing_node.token("stranger")) == ["alice/open"]
    assert listing_node.names(listing_node.token("reader")) == ["alice/open", "alice/shared"]
    assert listing_node.names(listing_node.token("alice")) == everything
    assert listing_node.names(
        listing_node.token("alice", dataset=incarnation(a_dataset("alice/secret"), ""))
    ) == [
        "alice/open",
        "alice/secret",
    ]
    assert listing_node.ask({"Authorization": "Bearer x"}).status == 401
    assert b"secret" not in listing_node.ask({}).data


def test_caches_ask_again_and_know_callers_apart(listing_node: Node) -> None:
    headers = listing_node.ask({}).headers
    assert (headers["Cache-Control"], headers["Vary"]) == ("no-cache", "Authorization")


def test_a_page_ends_after_a_number_of_datasets_and_of_bytes(
    listing_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = listing_node.token("alice")
    for limit in ("PAGE_DATASETS", "PAGE_BYTES"):
        with monkeypatch.context() as patch:
            patch.setattr(search, limit, 1)
            page = json.loads(listing_node.ask(alice).data)
            assert [one["name"] for one in page["datasets"]] == ["alice/open"]
            assert page["next"] == "alice/open"
            rest = listing_node.ask(alice, "?after=ALICE%2FSecret")
            assert [one["name"] for one in json.loads(rest.data)["datasets"]] == ["alice/shared"]
            assert json.loads(rest.data)["next"] is None


def test_a_single_tenant_node_lists_private_datasets_to_programs_on_its_machine_only(tmp_path: Path) -> None:
    listing_node = Node(tmp_path, is_multi_tenant=False)
    with running(listing_node.app) as listing_node.base:
        assert listing_node.names({}) == sorted(DATASETS)
        assert listing_node.names({"Via": "proxy"}) == ["alice/open", "orphan"]


def test_a_dataset_that_cannot_be_read_is_left_out(listing_node: Node) -> None:
    dataset = a_dataset("alice/open")
    listing_node.datasets.blobs.remove(
        dataset, ObjectKind.BLOCK, listing_node.datasets.blobs.names(dataset, ObjectKind.BLOCK)
    )
    assert listing_node.names({}) == []


def test_a_folder_that_cannot_be_read_is_left_out_and_a_bucket_that_cannot_be_read_is_said(
    listing_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = listing_node.datasets.states.current

    def refused(dataset: DatasetId) -> ChainState | None:
        if dataset == a_dataset("alice/open"):
            raise StorageUnavailable(file="datasets/x", why="permission denied")
        return current(dataset)

    shared = incarnation(a_dataset("alice/shared"), "")
    listing_node.directory.set_visibility(shared, Visibility.PUBLIC)
    monkeypatch.setattr(listing_node.datasets.states, "current", refused)
    assert listing_node.names({}) == ["alice/shared"]
    monkeypatch.setattr(OwnDatasets, "in_bucket", True)
    assert listing_node.ask({}).status == 503


def test_without_the_database_of_accounts_no_list_is_given(
    listing_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: object) -> None:
        raise StorageUnavailable(file="access.db", why="disk I/O error")

    monkeypatch.setattr(listing_node.directory.store, "visibility", refused)
    assert listing_node.ask({}).status == 503
