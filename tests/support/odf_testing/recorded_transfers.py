"""Recorded exchanges of another implementation (`tests/vectors/transfer`), and the blocks and objects in them.

`recorded_clients` plays them against a server, `recorded_servers` against a client.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from odf_common.codec.flatbuffers import block_hash, decode_block
from odf_common.hashing.multihash import Multihash, physical_hash_of
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import Seed
from odf_common.ports.store import ObjectKind
from odf_sync.smart.archive import read_archive

VECTORS = Path(__file__).parents[3] / "tests" / "vectors"
RECORDED_HOST = "http://node.example"
PATIENCE_SECONDS = 10.0
FOLDERS = tuple(kind.value for kind in (ObjectKind.BLOCK, ObjectKind.DATA, ObjectKind.CHECKPOINT))
Line = dict[str, Any]
Content = dict[tuple[ObjectKind, str], bytes]


def lines_of(case: str) -> list[Line]:
    text = (VECTORS / "transfer" / f"{case}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def with_texts(lines: list[Line], replaced: Mapping[str, str]) -> list[Line]:
    """Return the lines with other texts, such as the token and ids of accounts of the node under test."""
    text = json.dumps(lines)
    for old, new in replaced.items():
        text = text.replace(old, new)
    changed: list[Line] = json.loads(text)
    return changed


def body_of(line: Line) -> bytes:
    text: str = line.get("body", "")
    return base64.b64decode(text) if line.get("encoding") == "base64" else text.encode()


def plain_of(text: str, base: str) -> Any:
    """Return a message without what may differ: the server's address, the bytes of archives, texts of errors."""
    return _normal(json.loads(text.replace(base, RECORDED_HOST)))


def _normal(plain: Any) -> Any:
    if isinstance(plain, dict):
        if "payload" in plain:
            return {**plain, "payload": blocks_in(plain)}
        return {key: "" if key == "error_message" else _normal(value) for key, value in plain.items()}
    if isinstance(plain, list):
        return [_normal(one) for one in plain]
    return plain


def blocks_in(batch: Mapping[str, Any]) -> list[tuple[Multihash, bytes]]:
    return list(read_archive(BytesIO(bytes(batch["payload"])), count=batch["num_blocks"]))


@dataclass
class Pool:
    """All blocks and objects that appear in recordings and vectors."""

    blocks: dict[Multihash, bytes] = field(default_factory=dict)
    objects: dict[Multihash, bytes] = field(default_factory=dict)

    def chain(self, head: Multihash) -> list[tuple[Multihash, bytes]]:
        """Return the blocks up to a head, oldest first."""
        found: list[tuple[Multihash, bytes]] = []
        name: Multihash | None = head
        while name is not None:
            found.append((name, self.blocks[name]))
            name = decode_block(self.blocks[name]).block.prev_block_hash
        return found[::-1]


def all_recorded() -> Pool:
    pool = Pool()
    for file in VECTORS.glob("datasets/*/*/*"):
        if file.parent.name in ("blocks", "data"):
            content = file.read_bytes()
            (pool.blocks if file.parent.name == "blocks" else pool.objects)[physical_hash_of(content)] = (
                content
            )
    for case in VECTORS.glob("transfer/*.jsonl"):
        lines = lines_of(case.stem)
        paths = {line["conn"]: line["path"] for line in lines if "path" in line}
        for line in lines:
            _collect(pool, line, paths[line["conn"]])
    return pool


def _collect(pool: Pool, line: Line, path: str) -> None:
    if line["kind"] == "ws-text" and "payload" in line["body"]:
        plain = json.loads(line["body"])
        for _, raw in blocks_in(plain.get("blocks") or plain.get("new_blocks")):
            pool.blocks[block_hash(raw)] = raw
    elif line["kind"].startswith("http") and line.get("body"):
        content = body_of(line)
        (pool.blocks if "/blocks/" in path else pool.objects)[physical_hash_of(content)] = content


def dataset_of(chain: list[tuple[Multihash, bytes]]) -> DatasetId:
    event = decode_block(chain[0][1]).block.event
    assert isinstance(event, Seed)
    return event.dataset_id


def alias_of(path: str) -> str:
    """Return the name of the dataset that a path is in."""
    parts = path.partition("?")[0].strip("/").split("/")
    return "/".join(parts[: -1 if parts[-1] in ("pull", "push") else -2])


def head_of(lines: list[Line], pool: Pool) -> Multihash:
    """Return the last block that was pushed; the pool has it."""
    body = next(line["body"] for line in lines if "new_blocks" in line.get("body", ""))
    head = blocks_in(json.loads(body)["new_blocks"])[-1][0]
    assert head in pool.blocks
    return head


def content_in(lines: list[Line]) -> Content:
    """Return the blocks and objects that were transferred."""
    found: Content = {}
    answered = {line["conn"] for line in lines if line.get("status") == 200}
    paths = {line["conn"]: line["path"] for line in lines if "path" in line}
    for line in lines:
        *_, folder, name = paths[line["conn"]].split("/")
        if line["kind"] == "ws-text" and "payload" in line["body"]:
            plain = json.loads(line["body"])
            for block, raw in blocks_in(plain.get("blocks") or plain.get("new_blocks")):
                found[ObjectKind.BLOCK, str(block)] = raw
        elif line.get("body") and folder in FOLDERS and line["conn"] in answered:
            found[ObjectKind(folder), name] = body_of(line)
    return found
