"""A node as a process, so that its memory can be measured: `python large_message_node.py HOME BYTES SECONDS LIST OBJECTS`.

It has the datasets `cities`, with blocks of 20 MB in all, and `towns`, with one block. It receives `BYTES` of large
messages at a time, whose bytes are awaited after `SECONDS`; lists of objects may have `LIST` bytes in a push, and more than
the chain refers to by `OBJECTS` in a pull. Prints its port.
"""

import asyncio
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from aiohttp import web
from odf_testing.builders import AChain, a_chain, a_dataset, a_seed
from odf_testing.sync_node import SyncNode

from odf_common.metadata.events import SetInfo
from odf_common.ports.store import CatalogEntry, ObjectKind
from odf_sync.http import serve_pull, serve_push
from odf_sync.http.authorization import Authorizer
from odf_sync.http.connections import listen
from odf_sync.http.endpoints import application
from odf_sync.http.object_uploads import OpenPushes
from odf_sync.http.server import HTTP_THREADS
from odf_sync.http.simple_protocol import SimpleProtocol
from odf_sync.http.smart_routes import SmartProtocol
from odf_sync.smart import channel
from odf_sync.smart.channel import LargeMessages

BLOCKS, CHARACTERS = 400, 50_000


def held(home: Path) -> SyncNode:
    """Return a node with the datasets; the blocks of `cities` compress to half of their size."""
    node, numbers = SyncNode(home), random.Random(15)
    texts = (numbers.randbytes(CHARACTERS // 2).hex() for _ in range(BLOCKS))
    chain = a_chain(a_seed(), *(SetInfo(description=text) for text in texts))
    add(node, "cities", chain)
    add(node, "towns", a_chain(a_seed(dataset=a_dataset("towns"))))
    return node


def add(node: SyncNode, alias: str, chain: AChain) -> None:
    """Add a dataset."""
    for block in chain.blocks:
        node.blobs.put(chain.state.dataset_id, ObjectKind.BLOCK, block.hash, block.raw)
    node.refs.compare_and_set(chain.state.dataset_id, expected=None, new=chain.state.head)
    node.catalog.add(CatalogEntry(alias=alias, dataset_id=chain.state.dataset_id))


async def serve(home: Path, most: int) -> None:
    """Serve until standard input ends."""
    # As many as the node has: they read archives at the same time.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(HTTP_THREADS, "http"))
    node = held(home)
    authorizer = Authorizer(catalog=node.catalog, local_writers="loopback")
    pushes = OpenPushes()
    smart = SmartProtocol(node.datasets, node.settings, node.replies, authorizer, pushes)
    simple = SimpleProtocol(node.datasets, home, pushes)
    smart._large = LargeMessages(most)
    runner = web.AppRunner(application(authorizer, (*smart.endpoints(), *simple.endpoints())))
    await runner.setup()
    assert runner.server is not None
    listener = await listen(runner.server, "127.0.0.1", 0, None, header_seconds=10)
    sys.stdout.write(f"{listener.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    channel.FIRST_BYTES_SECONDS = float(sys.argv[3])  # type: ignore[misc]
    serve_push.LIST_BYTES = int(sys.argv[4])  # type: ignore[misc]
    serve_pull.MORE_OBJECTS = int(sys.argv[5])  # type: ignore[misc]
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
