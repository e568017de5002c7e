"""The schemas of resources by the end of their `$id`, so that editors complete manifests (RFC-018)."""

import asyncio
import hashlib
import json
import re
from contextlib import suppress
from typing import Final

from aiohttp import hdrs, web

from odf_common.codec.json_schema import Schema, schema_text
from odf_common.resources.resource_schemas import schema_name, schemas_by_name
from odf_common.resources.scalar_formats import VERSION_PATTERN
from odf_sync.http.endpoints import Endpoint
from odf_sync.http.resource_client import ResourceClient, ResourceProblem

SCHEMAS: Final = "/schemas/{context}/{version}/{name}"
SCHEMA_JSON: Final = "application/schema+json"
ONE_HOUR: Final = {hdrs.CACHE_CONTROL: "public, max-age=3600"}
_SUFFIX: Final = re.compile(r"\.json$")


class SchemaRoutes:
    """Serves schemas; they are public: those of the specification, and those that were registered."""

    def __init__(self, client: ResourceClient | None = None) -> None:
        """Ask a coordinator for what was registered; None: there is none."""
        self._client = client

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoint."""
        return (
            Endpoint(
                method="GET",
                path=SCHEMAS,
                patterns={"version": f"v0|{VERSION_PATTERN}"},  # no name of a dataset
                handler=self.get,
                summary="The JSON Schema of a type of resource or of a part, also with the suffix `.json`.",
                statuses=(200, 304, 404),
                media_type=SCHEMA_JSON,
            ),
        )

    async def get(self, request: web.Request) -> web.Response:
        """Return a schema."""
        context, version, name = (request.match_info[key] for key in ("context", "version", "name"))
        wanted = f"{context}/{version}/{_SUFFIX.sub('', name)}"
        schema = schemas_by_name().get(wanted) or await asyncio.to_thread(self._registered_schema, wanted)
        if schema is None:
            text = f"no schema {context}/{version}/{name}; `odf schema` lists them"
            return web.json_response({"message": text}, status=404)
        body = schema_text(schema).encode()
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        headers = {**ONE_HOUR, hdrs.ETAG: etag}
        if etag in request.headers.get(hdrs.IF_NONE_MATCH, ""):
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, content_type=SCHEMA_JSON, headers=headers)

    def _registered_schema(self, wanted: str) -> Schema | None:
        """Return a schema that was registered; None if the coordinator knows none, or does not answer."""
        if self._client is None:
            return None
        with suppress(ResourceProblem):
            for one in self._client.types().types:
                if one.json_schema and schema_name(one.schema) == wanted:
                    schema: Schema = json.loads(one.json_schema)
                    return schema
        return None
