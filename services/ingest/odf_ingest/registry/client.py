"""Fetches schemas from a registry over http and https (Confluent's REST API); the server is not trusted.

Transient errors, and errors that only the user can fix (address, credentials, certificates), raise
`RegistryUnavailable`, because they do not depend on messages. A missing or malformed schema raises `InvalidInput`.
"""

import json
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote
from uuid import UUID

import urllib3
from urllib3.exceptions import HTTPError
from urllib3.util import make_headers

from odf_common.adapters.networks import Pools
from odf_common.errors import InvalidInput
from odf_ingest.errors import RegistryUnavailable

REGISTRY_TIMEOUT: Final = urllib3.Timeout(connect=5, read=5, total=10)  # seconds
BODY_SECONDS: Final = 10.0  # for a whole answer
PIECE_BYTES: Final = 64 * 1024
MAX_RESPONSE_BYTES: Final = 4 * 1024 * 1024
MAX_REFERENCES: Final = 64  # schemas that one schema refers to, directly or not
OK, UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 200, 401, 403, 404
UNKNOWN: Final = frozenset({40401, 40402, 40403})  # the registry's codes: no such subject, version or schema
UNTRUSTED: Final = "its certificate is not trusted here: set schemaRegistryCa to the file of its authority"
CONNECTION: Final = re.compile(r"^(?:<[^>]*>|HTTPS?Connection(?:Pool)?\([^)]*\)): ")
ACCEPT: Final = "application/vnd.schemaregistry.v1+json, application/json"
GUIDS: Final = "schemas/guids/"
SERIALIZED: Final = "?format=serialized"  # a Protobuf schema as a compiled descriptor


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryAddress:
    """Address and credentials of a registry; `ca` is a file of certificates to trust instead of the system's."""

    url: str
    user: str = ""
    password: str = field(default="", repr=False)
    ca: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """A registered schema; `references` are the schemas that it imports, by name, each after its own imports."""

    kind: str
    """AVRO, PROTOBUF or JSON."""
    text: str
    """The text of the schema; for Protobuf, its compiled descriptor in base64."""
    references: Mapping[str, str] = field(default_factory=dict)


class RegistryClient:
    """Fetches schemas; thread-safe."""

    def __init__(self, address: RegistryAddress) -> None:
        """Connect when the first schema is fetched."""
        self._address = address
        self._pool: urllib3.PoolManager | None = None

    def schema(self, name: int | UUID) -> Schema:
        """Return a schema by its id or GUID.

        Raises `RegistryUnavailable`, and `InvalidInput` if there is no such schema, or the registry does not support
        GUIDs.
        """
        path = f"schemas/ids/{name}" if isinstance(name, int) else f"{GUIDS}{name}"
        answer = self._get(path)
        kind = str(answer.get("schemaType", "AVRO"))
        form = SERIALIZED if kind == "PROTOBUF" else ""
        if form:
            answer = self._get(path + form)
        references: dict[str, str] = {}
        self._add_references(answer, form, references)
        return Schema(kind=kind, text=_text(answer), references=references)

    def _add_references(
        self, answer: Mapping[str, object], form: str, schemas: dict[str, str], depth: int = 0
    ) -> None:
        references = answer.get("references") or ()
        if (
            not isinstance(references, list | tuple)
            or len(schemas) + len(references) + depth > MAX_REFERENCES
        ):
            raise InvalidInput(text=f"refers to more than {MAX_REFERENCES} other schemas")
        for link in references:
            try:
                name, subject, version = (
                    str(link["name"]),
                    str(link["subject"]),
                    int(link["version"]),
                )
            except (TypeError, KeyError, ValueError) as error:
                raise InvalidInput(text=f"has a malformed reference: {error}") from error
            if name not in schemas:
                reference = self._get(f"subjects/{quote(subject, safe='')}/versions/{version}{form}")
                self._add_references(reference, form, schemas, depth + 1)
                schemas[name] = _text(reference)

    def _get(self, path: str) -> Mapping[str, object]:
        status, body = self._request(path)
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        answer = answer if isinstance(answer, dict) else {}
        if status == OK and isinstance(answer.get("schema"), str):
            return answer
        if status == NOT_FOUND and (answer.get("error_code") in UNKNOWN or path.startswith(GUIDS)):
            raise InvalidInput(text="does not exist in the schema registry")
        if status in {UNAUTHORIZED, FORBIDDEN}:
            raise self._unavailable(f"it refuses the credentials of the source (status {status})")
        if status == OK:
            raise self._unavailable(f"its answer to /{path} is not a schema")
        raise self._unavailable(f"it answers /{path} with status {status}")

    def _request(self, path: str) -> tuple[int, bytes]:
        address = self._address
        headers = {"accept": ACCEPT, "user-agent": "odf"}
        if address.user:
            headers |= make_headers(basic_auth=f"{address.user}:{address.password}")
        try:
            response = self._connect().request(
                "GET",
                f"{address.url.rstrip('/')}/{path}",
                headers=headers,
                redirect=False,
                preload_content=False,
            )
            try:
                body = self._body(response)
            finally:
                response.close()  # and its connection, unless the body was read to its end
        except HTTPError as error:
            raise self._unavailable(_reason(error)) from error
        if len(body) > MAX_RESPONSE_BYTES:
            raise InvalidInput(text=f"is larger than {MAX_RESPONSE_BYTES >> 20} MiB")
        return response.status, body

    def _body(self, response: urllib3.BaseHTTPResponse) -> bytes:
        """Return the body, up to one chunk more than the limit. A registry that is too slow counts as unavailable."""
        deadline, body = time.monotonic() + BODY_SECONDS, b""
        while len(body) <= MAX_RESPONSE_BYTES and (
            piece := response.read1(PIECE_BYTES, decode_content=False)
        ):
            body += piece
            if time.monotonic() > deadline:
                raise self._unavailable(f"it took more than {BODY_SECONDS:g} s for an answer")
        return body

    def _connect(self) -> urllib3.PoolManager:
        if self._pool is None:
            self._pool = Pools(
                timeout=REGISTRY_TIMEOUT,
                ssl_context=self._tls(),
                maxsize=4,
                retries=False,
            )
        return self._pool

    def _tls(self) -> ssl.SSLContext | None:
        """Return the TLS context; None for plain http, which saves the time to load the system's certificates."""
        if not (self._address.ca or self._address.url.lower().startswith("https:")):
            return None
        try:
            return ssl.create_default_context(cafile=self._address.ca or None)
        except OSError as error:
            raise self._unavailable(f"the CA file {self._address.ca} cannot be used: {error}") from error

    def _unavailable(self, why: str) -> RegistryUnavailable:
        return RegistryUnavailable(what=f"schema registry {self._address.url}", why=why)


def _text(answer: Mapping[str, object]) -> str:
    return str(answer["schema"])


def _reason(error: HTTPError) -> str:
    """Return the reason why a request failed, without urllib3's prefix that represents the connection."""
    reason = CONNECTION.sub("", str(error))
    return f"{UNTRUSTED} ({reason})" if "CERTIFICATE_VERIFY_FAILED" in reason else reason
