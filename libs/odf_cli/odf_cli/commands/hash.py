"""`odf hash logical|physical FILE…`: the two hashes of a data slice; needs no node."""

from collections.abc import Callable, Sequence
from pathlib import Path

import click

from odf_cli.exit_codes import ExitCode
from odf_cli.output import echo, remark
from odf_cli.suggestions import CommandGroup
from odf_common.errors import InvalidInput, OdfError
from odf_common.hashing.multihash import Multihash


@click.group("hash", cls=CommandGroup, epilog="\b\nExample:\n  odf hash physical slice.parquet")
def command() -> None:
    """Print hashes of files, one line per file: the hash, two spaces, the file.

    Files that cannot be hashed are reported on stderr; the others are still printed.
    """


@command.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def logical(files: tuple[Path, ...]) -> int:
    """Hash the records of Parquet files, regardless of their encoding."""
    return _print(files, _logical)


@command.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def physical(files: tuple[Path, ...]) -> int:
    """Hash the bytes of files with SHA3-256."""
    return _print(files, _physical)


def _logical(file: Path) -> Multihash:
    from odf_common.data.slices import CorruptSlice, hash_slice

    try:
        return hash_slice(file)
    except CorruptSlice as error:
        raise InvalidInput(text=f"not a data slice: {error.why}") from error


def _physical(file: Path) -> Multihash:
    from odf_common.hashing.physical import physical_hash

    with file.open("rb") as opened:
        return physical_hash(opened)


def _print(files: Sequence[Path], hash_of: Callable[[Path], Multihash]) -> int:
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
