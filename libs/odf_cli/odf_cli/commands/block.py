"""`odf block encode|decode FILE…`: the bytes and hashes of single blocks; needs no node."""

import sys

import click

from odf_cli.output import echo
from odf_cli.suggestions import CommandGroup
from odf_cli.user_input import read_limited
from odf_common.codec.flatbuffers import block_hash, encode_block
from odf_common.codec.manifests import block_from_text, block_to_yaml
from odf_common.errors import InvalidInput

MAX_BLOCK_BYTES = 64 * 1024 * 1024  # of one block or manifest
_DEFAULT_VERSION = 3
_FILES = click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, allow_dash=True)
)


@click.group("block", cls=CommandGroup, epilog="\b\nExample:\n  odf block decode .odf/datasets/*/blocks/*")
def command() -> None:
    """Encode metadata blocks to bytes, and decode them."""


@command.command()
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


@command.command()
@_FILES
def decode(*, files: tuple[str, ...]) -> None:
    """Print each block as a YAML document, in the order given; - is standard input."""
    for number, file in enumerate(files):
        try:
            text = block_to_yaml(read_limited(file, MAX_BLOCK_BYTES))
        except InvalidInput as error:
            raise InvalidInput(text=f"not a metadata block: {error}", where=file) from error
        echo(("---\n" if number else "") + text, is_line=False)
