"""Names in arguments: shell completion, remote datasets, and blocks of a chain.

A block is named by its sequence number, its hash, or the beginning or end of its hash. A remote dataset is named by its
URL, or by its name in a named repository.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import click

from odf_common.errors import InvalidInput, NotFound, OdfError
from odf_common.service.settings import load

if TYPE_CHECKING:
    from odf_common.proto.odf.node.v1.coordinator_pb2 import BlockItem

MIN_PART_CHARACTERS: Final = 8  # of a hash
MAX_LISTED_HASHES: Final = 5  # if the name is ambiguous


def complete_dataset(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of this node's datasets that begin with `incomplete`; works while the node is stopped."""
    from odf_common.adapters.local.catalog import LocalCatalog

    try:
        names = [entry.alias for entry in LocalCatalog(load().home).entries()]
    except OdfError:
        return []
    return sorted((name for name in names if name.lower().startswith(incomplete.lower())), key=str.lower)


dataset_argument: Final = click.argument("dataset", shell_complete=complete_dataset)


def is_remote(name: str) -> bool:
    """Return whether a name is that of a remote dataset.

    `a/b` is remote if `a` is a repository and this node has no dataset `a/b`: an account may have the name of a
    repository.
    """
    from odf_common.identity.dataset_refs import AmbiguousAlias, RemoteAlias, RemoteId, Url, parse_ref_any

    try:
        ref = parse_ref_any(name)
    except InvalidInput:
        return False  # a pattern, a reference, or what the node will refuse
    match ref:
        case Url() | RemoteAlias():
            return True
        case RemoteId(repo=repo):
            return repo is not None
        case AmbiguousAlias(first=first):
            from odf_common.adapters.local.catalog import LocalCatalog
            from odf_common.adapters.local.repositories import LocalRepositories

            home = load().home
            return first in LocalRepositories(home).names() and LocalCatalog(home).by_alias(name) is None
        case _:
            return False


def require_block_name(block: str) -> None:
    """Raise `BadParameter` unless the string can be a sequence number or a long enough part of a hash."""
    if not (block.isascii() and block.isdecimal()) and len(block) < MIN_PART_CHARACTERS:
        raise click.BadParameter(
            f"{block!r} is not a sequence number; part of a hash needs at least {MIN_PART_CHARACTERS} characters",
            param_hint="BLOCK",
        )


def find_block(items: Iterable["BlockItem"], dataset: str, block: str) -> "BlockItem":
    """Return the block with a sequence number, hash, or unique part of a hash; raises `NotFound` or `InvalidInput`."""
    from odf_common.codec.flatbuffers import decode_block

    number, part = block.lstrip("0") or "0", canonical(block)
    blocks: list[BlockItem] = []
    for item in items:
        if part == item.hash or number == str(decode_block(item.content).block.sequence_number):
            return item
        if len(part) >= MIN_PART_CHARACTERS and (item.hash.startswith(part) or item.hash.endswith(part)):
            blocks.append(item)
    if not blocks:
        raise NotFound(what=f"block {block} in {dataset}")
    if len(blocks) > 1:
        text = f"{block} is part of {len(blocks)} hashes: {', '.join(item.hash for item in blocks[:MAX_LISTED_HASHES])}"
        raise InvalidInput(text=text + (", …" if len(blocks) > MAX_LISTED_HASHES else ""))
    return blocks[0]


def canonical(block: str) -> str:
    """Return a complete hash in its canonical form, and any other string in lower case, to compare it with hashes."""
    from odf_common.hashing.multihash import Multihash

    try:
        return str(Multihash.parse(block))
    except InvalidInput:
        return block.lower()
