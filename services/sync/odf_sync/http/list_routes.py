"""`GET /datasets`: the datasets that the caller may read, a page at a time (ADR 0060)."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from aiohttp import hdrs, web

from odf_common.errors import StorageUnavailable
from odf_common.ports.store import CatalogEntry
from odf_sync.access.access_store import FILE as ACCESS_FILE
from odf_sync.access.rules import Caller
from odf_sync.http.authorization import INVALID_TOKEN, Authorizer
from odf_sync.http.endpoints import Endpoint, caller_of
from odf_sync.search.own_datasets import OwnDatasets
from odf_sync.search.summary import AFTER, PATH

PARALLEL_LISTS: Final = 2  # lists that are made; others wait, and take no thread from transfers
HEADERS: Final = {hdrs.CACHE_CONTROL: "no-cache", hdrs.VARY: hdrs.AUTHORIZATION}


class ListRoutes:
    """The handler of the list."""

    def __init__(self, own: OwnDatasets, authorizer: Authorizer) -> None:
        """List the datasets of a node to those who may read them."""
        self._own = own
        self._authorizer = authorizer
        self._makers = ThreadPoolExecutor(PARALLEL_LISTS, thread_name_prefix="list")

    def endpoints(self) -> Iterator[Endpoint]:
        """Yield what is served."""
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
