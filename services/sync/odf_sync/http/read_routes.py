"""Reads without a copy: `GET /datasets`, and `GET /<dataset>/tail` and `/<dataset>/metadata`.

`/datasets` lists the datasets that the caller may read, in pages (ADR 0060). The other endpoints have the JSON that
clients of the other implementation read. Queries over HTTP are refused, with the response that the other implementation
sends if it has no signing key: this node only runs queries for users of its own machine.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from aiohttp import hdrs, web

from odf_common.chain.state import ChainState
from odf_common.codec.plain_values import to_plain
from odf_common.data.json_values import distinct, plain, record_rows
from odf_common.data.slices import read_slice
from odf_common.dataset.newest_records import newest_records
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.errors import NotFound, StorageUnavailable
from odf_common.identity.dataset_refs import HEAD
from odf_common.metadata.events import DataSlice, Seed
from odf_common.ports.store import CatalogEntry, ObjectKind, block_reader
from odf_sync.access.access_store import FILE as ACCESS_FILE
from odf_sync.access.rules import Action, Caller
from odf_sync.http.authorization import INVALID_TOKEN, Authorizer
from odf_sync.http.endpoints import JSON, Endpoint, caller_of, dataset_of
from odf_sync.search import AFTER, PATH, OwnDatasets

ROOT: Final = "message arrow_schema {"
_FIELD: Final = re.compile(
    r"(?P<indent> *)(?P<repetition>required|optional|repeated) (?P<type>\w+)(?P<length>\(\d+\))? field_id=-?\d+ "
    r"(?P<name>.*?)(?: \((?P<logical>[A-Z][A-Za-z0-9]*)(?:\((?P<details>[^()]*)\))?\))?(?P<end> {|;)"
)
_TYPES: Final = {"binary": "BYTE_ARRAY"}
_UNITS: Final = {"milliseconds": "MILLIS", "microseconds": "MICROS", "nanoseconds": "NANOS"}


def parquet_schema(schema: pa.Schema) -> str:
    """Return the schema of a Parquet file with such records, in the `message` notation with one line per field."""
    buffer = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), buffer)
    # Arrow prints the same schema in its own words.
    printed = str(pq.ParquetFile(pa.BufferReader(buffer.getvalue())).schema).splitlines()[2:]
    return "\n".join([ROOT, *map(_line, printed)]) + "\n"


def _line(printed: str) -> str:
    match = _FIELD.fullmatch(printed)
    if match is None:
        return printed
    repetition, kind = match["repetition"].upper(), match["type"]
    kind = kind if kind == "group" else _TYPES.get(kind, kind.upper())
    logical = _logical(match["logical"], match["details"])
    return (
        f"{match['indent']}{repetition} {kind}{match['length'] or ''} {match['name']}{logical}{match['end']}"
    )


def _logical(name: str | None, details: str | None) -> str:
    if name is None:
        return ""
    parameters = dict(re.findall(r"(\w+)=(\w+)", details or ""))
    match name:
        case "Timestamp" | "Time":
            shown = f"{_UNITS[parameters['timeUnit']]},{parameters['isAdjustedToUTC']}"
        case "Int":
            name, shown = "Integer", f"{parameters['bitWidth']},{parameters['isSigned']}"
        case "Decimal":
            shown = f"{parameters['precision']},{parameters['scale']}"
        case _:
            return f" ({name.upper()})"
    return f" ({name.upper()}({shown}))"


T = TypeVar("T")
E = TypeVar("E", bound=Enum)

READS_AT_A_TIME: Final = 2  # others wait, and take no thread from transfers
DEFAULT_RECORDS: Final = 100
MAX_RECORDS: Final = 10_000
MAX_ANSWER_BYTES: Final = 64 * 1024**2  # of the records of one answer, as Arrow holds them
NO_QUERIES: Final = (
    "this node runs no queries over HTTP: use `odf sql` on its machine, or `odf pull` the dataset"
)
NOT_CACHED: Final = {hdrs.CACHE_CONTROL: "no-cache"}


class DataFormat(Enum):
    """Layouts of records in a JSON response."""

    ARRAY_OF_OBJECTS = "JsonAoS"
    OBJECT_OF_ARRAYS = "JsonSoA"
    ARRAY_OF_ARRAYS = "JsonAoA"


class SchemaFormat(Enum):
    """Formats of the schema in a response."""

    PARQUET = "Parquet"


class Part(Enum):
    """The definitions of a dataset that `/metadata` can return."""

    ATTACHMENTS = "Attachments"
    INFO = "Info"
    LICENSE = "License"
    REFS = "Refs"
    SCHEMA = "Schema"
    SEED = "Seed"
    VOCAB = "Vocab"


class ReadRoutes:
    """Handlers of `/tail` and `/metadata`."""

    def __init__(self, datasets: NodeDatasets) -> None:
        """Serve the datasets of a node."""
        self._datasets = datasets
        self._threads = ThreadPoolExecutor(READS_AT_A_TIME, thread_name_prefix="read")

    def endpoints(self) -> Iterator[Endpoint]:
        """Yield the endpoints."""
        yield Endpoint(
            method="GET",
            path="/tail",
            handler=self._tail,
            summary="The dataset's last records, in offset order.",
            query={
                "limit": f"how many, {DEFAULT_RECORDS} by default and {MAX_RECORDS} at most",
                "skip": "how many of the last to leave out",
                "dataFormat": _choices(DataFormat),
                "schemaFormat": f"{_choices(SchemaFormat)}: add the schema",
            },
            action=Action.READ,
        )
        yield Endpoint(
            method="GET",
            path="/metadata",
            handler=self._metadata,
            summary="The dataset's current definitions.",
            query={"include": f"comma-separated, Seed by default: {_choices(Part)}"},
            action=Action.READ,
        )
        for method, path in (("GET", "/query"), ("POST", "/query"), ("POST", "/verify")):
            yield Endpoint(
                method=method,
                path=path,
                handler=_refuse_queries,
                summary="Refused: this node runs no queries over HTTP.",
                statuses=(501,),
            )

    async def _tail(self, request: web.Request) -> web.Response:
        query = request.query
        limit = _number(query.get("limit"), DEFAULT_RECORDS, "limit", minimum=1)
        skip = _number(query.get("skip"), 0, "skip", minimum=0)
        data_format = _choose(DataFormat, query.get("dataFormat"), DataFormat.ARRAY_OF_OBJECTS)
        schema_format = _choose(SchemaFormat, query.get("schemaFormat"), None)
        entry = dataset_of(request)
        try:
            body = await self._run(
                partial(self._encoded_tail, entry, limit, skip, data_format, schema_format)
            )
        except NotFound as error:
            raise _refusal(f"the data of {entry.alias} is not on this node", web.HTTPNotFound) from error
        return web.Response(body=body, content_type=JSON, headers=NOT_CACHED)

    def _encoded_tail(
        self,
        entry: CatalogEntry,
        limit: int,
        skip: int,
        data_format: DataFormat,
        schema_format: SchemaFormat | None,
    ) -> bytes:
        """Return the body of the response.

        Runs in a thread, as large JSON takes seconds and would block the event loop.
        """
        table = self._records(entry, limit, skip)
        answer: dict[str, object] = {"data": [], "dataFormat": data_format.value}
        if table is not None:
            answer["data"] = _laid_out(table, data_format)
            if schema_format is not None:
                answer |= {"schema": parquet_schema(table.schema), "schemaFormat": schema_format.value}
        return json.dumps(answer).encode()

    def _records(self, entry: CatalogEntry, limit: int, skip: int) -> pa.Table | None:
        """Return the requested records, None if the dataset has none; raises `NotFound` and `web.HTTPBadRequest`."""
        dataset, blobs = entry.dataset_id, self._datasets.blobs
        state = self._datasets.states.current(dataset)
        if state is None:
            return None

        def read(slice_: DataSlice) -> pa.Table:
            return read_slice(blobs.local_path(dataset, ObjectKind.DATA, slice_.physical_hash))

        table = newest_records(block_reader(blobs, dataset), state.head, limit + skip, read)
        if table is None:
            return None
        table = table.slice(0, max(len(table) - skip, 0))
        table = table.slice(max(len(table) - limit, 0))
        if table.nbytes > MAX_ANSWER_BYTES:
            raise _refusal(f"{len(table)} records have {table.nbytes} bytes; set a lower limit")
        return table

    async def _metadata(self, request: web.Request) -> web.Response:
        names = request.query.get("include", Part.SEED.value).split(",")
        parts = [_part(name.strip()) for name in names]
        state = await self._run(partial(self._datasets.states.current, dataset_of(request).dataset_id))
        if state is None:
            raise web.HTTPNotFound(text="")
        output = {part.value.lower(): _definition(part, state) for part in dict.fromkeys(parts)}
        definitions = {name: value for name, value in output.items() if value is not None}
        return web.json_response({"output": definitions}, headers=NOT_CACHED)

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def _laid_out(table: pa.Table, layout: DataFormat) -> object:
    """Return the records as JSON values in a layout: timestamps as RFC 3339, `op` as 0 to 3."""
    names = distinct(table.column_names)
    rows = [[plain(row[name]) for name in names] for row in record_rows(table)]
    match layout:
        case DataFormat.ARRAY_OF_OBJECTS:
            return [dict(zip(names, row, strict=True)) for row in rows]
        case DataFormat.OBJECT_OF_ARRAYS:
            return {name: [row[index] for row in rows] for index, name in enumerate(names)}
        case DataFormat.ARRAY_OF_ARRAYS:
            return rows


def _definition(part: Part, state: ChainState) -> object:
    """Return a definition without its `kind`, or None if the dataset does not have it."""
    definitions = state.definitions
    match part:
        case Part.SEED:
            return _fields(Seed(dataset_id=state.dataset_id, dataset_kind=state.kind))
        case Part.VOCAB:
            return _fields(state.vocabulary)
        case Part.REFS:
            return [{"name": HEAD, "blockHash": str(state.head)}]
        case Part.ATTACHMENTS:
            return _fields(definitions.attachments)
        case Part.INFO:
            return _fields(definitions.info)
        case Part.LICENSE:
            return _fields(definitions.license)
        case Part.SCHEMA:
            return _fields(definitions.schema)


def _fields(event: object) -> Mapping[str, Any] | None:
    if event is None:
        return None
    return {name: value for name, value in to_plain(event).items() if name != "kind"}


async def _refuse_queries(_: web.Request) -> web.Response:
    return web.json_response({"message": NO_QUERIES}, status=501)


def _number(text: str | None, default: int, name: str, *, minimum: int) -> int:
    if text is None:
        return default
    is_short = text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_RECORDS))
    if not is_short or not minimum <= int(text) <= MAX_RECORDS:
        raise _refusal(f"{name}: expected a number from {minimum} to {MAX_RECORDS}, got {text!r}")
    return int(text)


def _choose(choices: type[E], text: str | None, default: Any) -> Any:  # noqa: ANN401 - a member, or the default
    if text is None:
        return default
    try:
        return choices(text)
    except ValueError as error:
        raise _refusal(f"expected one of {_choices(choices)}, got {text!r}") from error


def _part(text: str) -> Part:
    part: Part = _choose(Part, text, None)
    return part


def _choices(choices: type[Enum]) -> str:
    return ", ".join(choice.value for choice in choices)


def _refusal(text: str, kind: type[web.HTTPException] = web.HTTPBadRequest) -> web.HTTPException:
    return kind(text=json.dumps({"message": text}), content_type=JSON)


PARALLEL_LISTS: Final = 2  # lists that are made; others wait, and take no thread from transfers
HEADERS: Final = {hdrs.CACHE_CONTROL: "no-cache", hdrs.VARY: hdrs.AUTHORIZATION}


class ListRoutes:
    """The handler of `/datasets`, the list of datasets."""

    def __init__(self, own: OwnDatasets, authorizer: Authorizer) -> None:
        """List the datasets of a node that the caller may read."""
        self._own = own
        self._authorizer = authorizer
        self._makers = ThreadPoolExecutor(PARALLEL_LISTS, thread_name_prefix="list")

    def endpoints(self) -> Iterator[Endpoint]:
        """Yield the endpoint."""
        yield Endpoint(
            method="GET",
            path=f"/{PATH}",
            handler=self._list,
            summary="The datasets that the caller may read: names, descriptions, keywords, columns.",
            query={AFTER: "name after which the page begins"},
            statuses=(200, 401),
        )

    async def _list(self, request: web.Request) -> web.Response:
        caller = caller_of(request)
        if caller.has_invalid_token:
            return web.Response(status=401, text=INVALID_TOKEN)
        after = request.query.get(AFTER, "")
        loop = asyncio.get_running_loop()
        body = await loop.run_in_executor(self._makers, self._page, caller, after)
        return web.Response(body=body, content_type="application/json", headers=HEADERS)

    def _page(self, caller: Caller, after: str) -> bytes:
        with self._authorizer.directory.one_moment():
            entries = [
                entry for entry in self._own.datasets.catalog.entries() if self._may_find(caller, entry)
            ]
        return self._own.page(entries, after).to_bytes()

    def _may_find(self, caller: Caller, entry: CatalogEntry) -> bool:
        try:
            return self._authorizer.may_find(caller, entry)
        except StorageUnavailable as error:
            if error.file == ACCESS_FILE or self._own.in_bucket:
                raise
            return False  # a file of this dataset, or of one that it reads
