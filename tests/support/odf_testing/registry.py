"""A schema registry: an HTTP server with the paths of Confluent's REST API, and messages in its wire format."""

import base64
import io
import json
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID

from fastavro import parse_schema, schemaless_writer
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

BASIC = "Basic "


@dataclass(slots=True)
class Registered:
    """A schema of the registry; `serialized` is the response for `format=serialized`."""

    text: str
    kind: str = "AVRO"
    serialized: str | None = None
    references: Sequence[Mapping[str, Any]] = ()


@dataclass(slots=True)
class Registry:
    """The server's address, its schemas by id and by subject with version, and the requested paths so far."""

    url: str = ""
    schemas: dict[int, Registered] = field(default_factory=dict)
    subjects: dict[tuple[str, int], Registered] = field(default_factory=dict)
    guids: dict[UUID, int] = field(default_factory=dict)
    """Ids of schemas by GUID."""
    asked: list[str] = field(default_factory=list)
    connections: int = 0
    """How many were made so far."""
    login: str = ""
    """`user:password` that each request must have."""
    fails: int = 0
    """The status of all answers, if not 0."""
    pause: float = 0.0
    """Seconds after each byte of an answer."""
    answer: bytes = b""
    """The body of all answers, if not empty."""

    def add(self, number: int, schema: object, **facts: Any) -> None:
        """Register a schema by its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        self.schemas[number] = Registered(text=text, **facts)

    def add_protobuf(self, number: int, text: str, **facts: Any) -> None:
        """Register a file of message types by its id."""
        self.add(number, text, kind="PROTOBUF", serialized=descriptor_of(text), **facts)


@contextmanager
def serving_registry(port: int = 0, certificate: tuple[Path, Path] | None = None) -> Iterator[Registry]:
    """Serve a registry on loopback inside the block; over https with a `certificate` and its key."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 65_536  # a response in one piece, which the client's kernel acknowledges at once

        def setup(self) -> None:
            registry.connections += 1
            super().setup()

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            registry.asked.append(self.path)
            status, body = _answer(registry, self.path, self.headers.get("authorization", ""))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            for place in range(len(body) if registry.pause else 0):
                self.wfile.write(body[place : place + 1])
                self.wfile.flush()
                time.sleep(registry.pause)
            self.wfile.write(b"" if registry.pause else body)

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    registry.url = f"http{'s' if certificate else ''}://127.0.0.1:{server.server_port}"
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _answer(registry: Registry, path: str, authorization: str) -> tuple[int, bytes]:
    if registry.fails:
        return registry.fails, b"{}"
    if registry.answer:
        return 200, registry.answer
    login = base64.b64decode(authorization.removeprefix(BASIC)).decode()
    if login != registry.login:
        return 401, json.dumps({"error_code": 401, "message": "Unauthorized"}).encode()
    place, _, query = path.strip("/").partition("?")
    match place.split("/"):
        case ["schemas", "ids", number]:
            found, missing = registry.schemas.get(int(number)), 40403
        case ["schemas", "guids", guid] if registry.guids:
            found, missing = registry.schemas.get(registry.guids.get(UUID(guid), 0)), 40403
        case ["subjects", subject, "versions", version]:
            found, missing = registry.subjects.get((subject, int(version))), 40401
        case _:
            return 404, json.dumps({"error_code": 404, "message": "HTTP 404 Not Found"}).encode()
    if found is None:
        return 404, json.dumps({"error_code": missing, "message": "not found"}).encode()
    text = found.text if query != "format=serialized" or found.serialized is None else found.serialized
    answer = {"schema": text, "references": list(found.references)}
    return 200, json.dumps(answer if found.kind == "AVRO" else {**answer, "schemaType": found.kind}).encode()


def descriptor_of(text: str, name: str = "made.proto", **imports: str) -> str:
    """Return a .proto file as a registry serializes it: its compiled descriptor in base64; `imports` by stem."""
    with tempfile.TemporaryDirectory() as folder:
        for file, content in {name: text, **{f"{stem}.proto": one for stem, one in imports.items()}}.items():
            Path(folder, file).parent.mkdir(parents=True, exist_ok=True)
            Path(folder, file).write_text(content)
        well_known = str(Path(protoc.__file__).parent / "_proto")
        out = str(Path(folder, "out"))
        done = protoc.main(["", f"-I{folder}", f"-I{well_known}", f"--descriptor_set_out={out}", name])
        assert done == 0, text
        (file_,) = FileDescriptorSet.FromString(Path(out).read_bytes()).file
    return base64.b64encode(file_.SerializeToString()).decode()


def framed(number: int, payload: bytes) -> bytes:
    """Return a message in the registry's wire format."""
    return b"\0" + number.to_bytes(4, "big") + payload


def framed_by_guid(guid: UUID, payload: bytes) -> bytes:
    """Return a message that names its schema by the GUID."""
    return b"\1" + guid.bytes + payload


def avro(number: int, schema: object, value: object) -> bytes:
    """Return a message with a value in Avro; values of logical types are given as they are encoded."""
    out = io.BytesIO()
    schemaless_writer(out, parse_schema(_without_logical_types(schema)), value)
    return framed(number, out.getvalue())


def _without_logical_types(part: Any) -> Any:
    if isinstance(part, dict):
        return {key: _without_logical_types(one) for key, one in part.items() if key != "logicalType"}
    return [_without_logical_types(one) for one in part] if isinstance(part, list) else part
