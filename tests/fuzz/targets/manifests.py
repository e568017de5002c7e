"""Manifests as people write them, in YAML or JSON."""

import json

from odf_common.codec.flatbuffers import decode_block, decode_event, encode_block, encode_event
from odf_common.codec.manifests import (
    block_from_text,
    event_from_text,
    snapshots_from_text,
    to_plain,
    to_yaml,
)
from odf_common.errors import OdfError


def check(raw: bytes) -> None:
    """Read `raw` as every kind of manifest; the result can be stored, shown, and read again."""
    _check_snapshots(raw)
    _check_event(raw)
    _check_block(raw)


def _check_snapshots(raw: bytes) -> None:
    try:
        snapshots = snapshots_from_text(raw, "file")
        stored = [[encode_event(event) for event in one.metadata] for one in snapshots]
    except OdfError:
        return
    for snapshot, events in zip(snapshots, stored, strict=True):
        manifest = {"kind": "DatasetSnapshot", "version": 1, "content": to_plain(snapshot)}
        assert snapshots_from_text(json.dumps(manifest).encode(), "again") == (snapshot,)
        assert tuple(decode_event(event) for event in events) == snapshot.metadata


def _check_event(raw: bytes) -> None:
    try:
        event = event_from_text(raw, "file")
        stored = encode_event(event)
    except OdfError:
        return
    assert decode_event(stored) == event
    assert event_from_text(to_yaml(event).encode(), "again") == event


def _check_block(raw: bytes) -> None:
    try:
        block, version = block_from_text(raw, "file")
        stored = encode_block(block, version or 3)
    except OdfError:
        return
    assert decode_block(stored).block == block
    assert block_from_text(to_yaml(block).encode(), "again") == (block, None)
