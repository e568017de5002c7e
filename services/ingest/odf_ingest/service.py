"""Wiring of the ingest service: the only file where its parts meet the adapters."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pyarrow as pa

from odf_common.adapters.kafka.partitioner import partition_of
from odf_common.adapters.kafka.records import KafkaRecords
from odf_common.runtime.environment import Environment
from odf_common.runtime.replies import Replies
from odf_common.runtime.service import Service
from odf_ingest.commit import BatchCommitter
from odf_ingest.handlers import Notices, subscriptions
from odf_ingest.prepare import Preparer
from odf_ingest.preprocess import Preprocessor
from odf_ingest.propose import Proposals
from odf_ingest.push.drain import Drains
from odf_ingest.push.lanes import Lanes
from odf_ingest.push.owned import OwnedSources
from odf_ingest.push.reader import PushReader
from odf_ingest.push.source import Limits
from odf_ingest.push.work import Work
from odf_ingest.servicer import IngestServicer
from odf_ingest.slices import Drafter

READERS: Final = 2  # threads that parse
COMMITTERS: Final = 8  # datasets that commit at the same time


def build(env: Environment) -> Service:
    """Return the service: it reads push topics, takes pushed files, and proposes what it made of them."""
    _tune_collector()
    settings = env.settings
    replies = Replies(env.bus)
    drafter = Drafter(
        env.blobs, env.clock, block_version=settings.block_version, is_signed=settings.signed_columns
    )
    lanes = Lanes(
        env.blobs,
        env.states,
        BatchCommitter(env.states, drafter, Proposals(replies)),
        ThreadPoolExecutor(COMMITTERS, thread_name_prefix="commit"),
    )
    preparer = Preparer(Preprocessor(env.engine, env.blobs.scratch))
    reader = PushReader(KafkaRecords(settings.required("kafka")), settings.slice_max_bytes)
    owned = OwnedSources(
        reading=reader,
        lanes=lanes,
        catalog=env.catalog,
        topics=env.topics,
        limits=Limits(size=settings.slice_max_bytes, delay=settings.slice_max_delay_ms / 1000),
        partition_of=lambda dataset: partition_of(str(dataset).encode()),
    )
    work = Work(
        lanes=lanes,
        preparer=preparer,
        topics=env.topics,
        bus=env.bus,
        readers=ThreadPoolExecutor(READERS, thread_name_prefix="read"),
        failed=reader.failed,
    )
    reader.bind(owned, work)
    servicer = IngestServicer(
        catalog=env.catalog,
        lanes=lanes,
        preparer=preparer,
        drains=Drains(env.topics, lanes, owned, reader),
        owned=owned,
        clock=env.clock,
        staging=settings.home / "staging",
    )
    return Service(
        name="ingest",
        subscriptions=subscriptions(Notices(reader, owned), replies),
        grpc=servicer.register,
        grpc_address=settings.ingest_grpc,
        background=(reader.run, _warm),
    )


def _warm(_: threading.Event) -> None:
    """Have Arrow import pandas, which it does at its first conversion, before the first batch waits for that."""
    pa.chunked_array([[0]]).to_numpy()


def _tune_collector() -> None:
    """Keep the collector off what was imported, and from counting every message that is taken."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 50)
