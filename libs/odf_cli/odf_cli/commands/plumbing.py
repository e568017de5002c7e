"""Commands that need no node: `odf hash`, `block` and `parse-ref`."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import assert_never

import click

from odf_cli.exit_codes import ExitCode
from odf_cli.output import echo, remark
from odf_cli.suggestions import CommandGroup
from odf_cli.user_input import read_limited
from odf_common.codec.flatbuffers import block_hash, encode_block
from odf_common.codec.manifests import block_from_text, block_to_yaml
from odf_common.errors import InvalidInput, OdfError
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import (
    Alias,
    AmbiguousAlias,
    DatasetId,
    DatasetRefAny,
    RemoteAlias,
    RemoteId,
    Url,
    parse_ref_any,
)


@click.group("hash", cls=CommandGroup, epilog="\b\nExample:\n  odf hash physical slice.parquet")
def hash_command() -> None:
    """Print hashes of files, one line per file: the hash, two spaces, the file.

    Files that cannot be hashed are reported on stderr; the others are still printed.
    """


@hash_command.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def logical(files: tuple[Path, ...]) -> int:
    """Hash the records of Parquet files, regardless of their encoding."""
    return _print_hashes(files, _logical)


@hash_command.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def physical(files: tuple[Path, ...]) -> int:
    """Hash the bytes of files with SHA3-256."""
    return _print_hashes(files, _physical)


def _logical(file: Path) -> Multihash:
    from odf_common.data.slices import CorruptSlice, hash_slice

    try:
        return hash_slice(file)
    except CorruptSlice as error:
        raise InvalidInput(text=f"not a data slice: {error.why}") from error


def _physical(file: Path) -> Multihash:
    from odf_common.hashing.multihash import physical_hash

    with file.open("rb") as opened:
        return physical_hash(opened)


def _print_hashes(files: Sequence[Path], hash_of: Callable[[Path], Multihash]) -> int:
    failed = False
    for file in files:
        try:
            echo(f"{hash_of(file)}  {file}")
        except OdfError as error:
            failed = True
            remark(f"error: {file}: {error}")
        except OSError as error:
            failed = True
            remark(f"error: {file}: {error.strerror}")
    return ExitCode.FAILED if failed else ExitCode.OK


MAX_BLOCK_BYTES = 64 * 1024 * 1024  # of one block or manifest
_DEFAULT_VERSION = 3
_FILES = click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, allow_dash=True)
)


@click.group("block", cls=CommandGroup, epilog="\b\nExample:\n  odf block decode .odf/datasets/*/blocks/*")
def block_command() -> None:
    """Encode metadata blocks to bytes, and decode them."""


@block_command.command()
@click.option(
    "--version", type=click.IntRange(2, 3), help="Manifest version. Default: the manifest's own, or 3."
)
@click.option("--raw", is_flag=True, help="Write the block's bytes instead of its hash.")
@_FILES
def encode(*, version: int | None, raw: bool, files: tuple[str, ...]) -> None:
    """Print the hash of each block: "<block hash>  <file>".

    FILE is YAML or JSON: the content of a MetadataBlock, or a MetadataBlock manifest; - is standard input.
    """
    if raw and len(files) != 1:
        raise click.UsageError("--raw writes the bytes of one block; give one FILE")
    for file in files:
        block, own_version = block_from_text(read_limited(file, MAX_BLOCK_BYTES), file)
        content = encode_block(block, version or own_version or _DEFAULT_VERSION)
        if raw:
            sys.stdout.buffer.write(content)
            sys.stdout.buffer.flush()
        else:
            echo(f"{block_hash(content)}  {file}")


@block_command.command()
@_FILES
def decode(*, files: tuple[str, ...]) -> None:
    """Print each block as a YAML document, in the order given; - is standard input."""
    for number, file in enumerate(files):
        try:
            text = block_to_yaml(read_limited(file, MAX_BLOCK_BYTES))
        except InvalidInput as error:
            raise InvalidInput(text=f"not a metadata block: {error}", where=file) from error
        echo(("---\n" if number else "") + text, is_line=False)


@click.command(name="parse-ref", epilog="\b\nExample:\n  odf parse-ref -- orders did:odf:fed01…")
@click.argument("texts", nargs=-1, required=True, metavar="-- TEXT…")
def parse_ref_command(texts: tuple[str, ...]) -> None:
    """Show how references to datasets are parsed.

    Prints one JSON object per TEXT, in order: its kind and parts, or {"error": …}, which is not a failure.
    """
    for text in texts:
        try:
            parsed = _describe(parse_ref_any(text))
        except InvalidInput as error:
            parsed = {"error": str(error)}
        echo(json.dumps(parsed))


def _describe(ref: DatasetRefAny) -> dict[str, str]:
    match ref:
        case DatasetId():
            parts = {"kind": "id", "id": str(ref)}
        case RemoteId():
            parts = {"kind": "remoteId", "repo": str(ref.repo), "id": str(ref.id)}
        case Alias():
            parts = {"kind": "alias", "dataset": str(ref.dataset)}
        case AmbiguousAlias():  # a local account or a repository: only a node can tell
            parts = {"kind": "ambiguousAlias", "accountOrRepo": str(ref.first), "dataset": str(ref.dataset)}
        case RemoteAlias():
            account = {} if ref.account is None else {"account": str(ref.account)}
            parts = {"kind": "remoteAlias", "repo": str(ref.repo), **account, "dataset": str(ref.dataset)}
        case Url():
            parts = {"kind": "url", "url": ref.text}
        case _:
            assert_never(ref)
    return parts
