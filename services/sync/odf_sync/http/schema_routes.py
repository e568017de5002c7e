"""The schemas of resources by the end of their `$id`, so that editors complete manifests (RFC-018)."""

import hashlib
import re
from typing import Final

from aiohttp import hdrs, web

from odf_common.codec.json_schema import schema_text
from odf_common.resources.resource_schemas import schemas_by_name
from odf_sync.http.endpoints import Endpoint

SCHEMAS: Final = "/schemas/{context}/{version}/{name}"
SCHEMA_JSON: Final = "application/schema+json"
ONE_HOUR: Final = {hdrs.CACHE_CONTROL: "public, max-age=3600"}
_SUFFIX: Final = re.compile(r"\.json$")


class SchemaRoutes:
    """Serves schemas; they are public and contain nothing of the node."""

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoint."""
        return (
            Endpoint(
                method="GET",
                path=SCHEMAS,
                handler=self.get,
                summary="The JSON Schema of a type of resource or of a part, also with the suffix `.json`.",
                statuses=(200, 304, 404),
                media_type=SCHEMA_JSON,
            ),
        )

    async def get(self, request: web.Request) -> web.Response:
        """Return a schema."""
        context, version, name = (request.match_info[key] for key in ("context", "version", "name"))
        schema = schemas_by_name().get(f"{context}/{version}/{_SUFFIX.sub('', name)}")
        if schema is None:
            text = f"no schema {context}/{version}/{name}; `odf schema` lists them"
            return web.json_response({"message": text}, status=404)
        body = schema_text(schema).encode()
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        headers = {**ONE_HOUR, hdrs.ETAG: etag}
        if etag in request.headers.get(hdrs.IF_NONE_MATCH, ""):
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, content_type=SCHEMA_JSON, headers=headers)
