"""A node that copies long chains, with its coordinator in its process, and the chains that it copies."""

import os
import shutil
from pathlib import Path
from typing import Final, cast

import pyarrow as pa
from odf_testing.builders import AChain, a_chain, a_seed, a_time
from odf_testing.coordinator import Coordinator

from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.chain.build_blocks import build_blocks
from odf_common.codec.envelopes import Body, Envelope, envelope
from odf_common.data.columns import TIMESTAMP
from odf_common.data.schema_evolution import schema_to_event
from odf_common.data.slices import write_slice
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import AddData, DataSlice, KnownEvent, OffsetInterval, SetInfo
from odf_common.ports.store import CatalogEntry
from odf_common.service.request_reply import Replies
from odf_common.service.settings import Settings
from odf_coordinator.api.bus_handlers import Commands
from odf_sync.transfer.pull_dataset import pull
from odf_sync.transfer.push_dataset import push
from odf_sync.transfer.push_source import Push

ROWS: Final = 159_000  # of a slice: 1.5 MiB of random numbers
NAME: Final = "notes"


class Client:
    """A node that pulls and pushes."""

    def __init__(self, home: Path) -> None:
        """Keep datasets in `home`."""
        self.coordinator = Coordinator(home=home, is_durable=True)
        self._commands = Commands(
            committer=self.coordinator.committer, importer=self.coordinator.importer
        ).handle
        self.datasets = self.coordinator.node_datasets
        self.settings = Settings(home=home)
        self.replies = cast("Replies", self)

    def pull(self, port: int, *, trusts_records: bool = False) -> None:
        """Copy the dataset that is served at a port."""
        url = f"http://127.0.0.1:{port}/{NAME}"
        steps = pull(
            self.datasets, self.settings, url, "", replies=self.replies, trusts_records=trusts_records
        )
        *_, last = steps
        assert last.state == "updated", last

    def push(self, port: int) -> None:
        """Send the dataset to the node at a port."""
        wanted = Push(dataset=NAME, target=f"odf+http://127.0.0.1:{port}/{NAME}")
        *_, last = push(self.datasets, self.settings, wanted, lambda _: None)
        assert last.new_blocks, last

    def request(self, _topic: str, dataset: DatasetId, body: Body, *, timeout: float) -> Envelope | None:
        """Have the coordinator handle the command."""
        del timeout
        (answer,) = self._commands(envelope(dataset, body))
        return answer.envelope


def chain_in(home: Path, *, blocks: int, objects: int, is_newest_data: bool = False) -> AChain:
    """Return a chain, whose slices are in `home`: those of the first blocks, or only that of the newest."""
    files = home / "slices"
    files.mkdir(parents=True)
    chain = a_chain(a_seed(), schema_to_event(_table(0).schema))
    for number in range(blocks - len(chain.blocks)):
        event: KnownEvent = SetInfo(description=f"number {number}")
        if number < objects or (is_newest_data and len(chain.blocks) == blocks - 1):
            event = _slice(files, chain)
        added, chain.last = build_blocks(chain.state, [event], system_time=a_time(number + 10), version=3)
        chain.blocks.extend(added)
    return chain


def _slice(files: Path, chain: AChain) -> AddData:
    start = chain.state.next_offset
    written = write_slice(_table(start), files / "slice")
    (files / "slice").rename(files / str(written.physical_hash))
    data = DataSlice(
        logical_hash=written.logical_hash,
        physical_hash=written.physical_hash,
        offset_interval=OffsetInterval(start=start, end=start + ROWS - 1),
        size=written.size,
    )
    return AddData(prev_offset=chain.state.last_offset, new_data=data)


def _table(start: int) -> pa.Table:
    numbers = pa.Array.from_buffers(pa.int64(), ROWS, [None, pa.py_buffer(os.urandom(8 * ROWS))])
    times = pa.array([1], TIMESTAMP).take(pa.array([0] * ROWS))
    columns = {
        "offset": pa.array(range(start, start + ROWS), pa.uint64()),
        "op": pa.array([0] * ROWS, pa.uint8()),
        "system_time": times,
        "event_time": times,
        "number": numbers,
    }
    return pa.table(columns)


def written(home: Path, chain: AChain) -> DatasetId:
    """Write a chain into the home of a node, without syncing it to the disk."""
    dataset = chain.state.dataset_id
    folder = home / "datasets" / dataset.folder
    for kind in ("blocks", "refs", "checkpoints"):
        (folder / kind).mkdir(parents=True)
    (home / "slices").rename(folder / "data")
    for block in chain.blocks:
        (folder / "blocks" / str(block.hash)).write_bytes(block.raw)
    (folder / "refs" / "head").write_text(str(chain.state.head))
    LocalCatalog(home).add(CatalogEntry(alias=NAME, dataset_id=dataset))
    return dataset


def linked_without_newest(full: Path, folder: Path, dataset: DatasetId, chain: AChain) -> None:
    """Copy a home by hard links; in the copy, the chain ends one block earlier."""
    shutil.copytree(full, folder, copy_function=os.link)
    files = folder / "datasets" / dataset.folder
    head = files / "refs" / "head"
    head.unlink()  # a write would go to the original too
    head.write_text(str(chain.blocks[-2].hash))
    newest = chain.blocks[-1]
    (files / "blocks" / str(newest.hash)).unlink()
    event = newest.block.event
    if isinstance(event, AddData) and event.new_data is not None:
        (files / "data" / str(event.new_data.physical_hash)).unlink()
