"""`odf key export|import`: a dataset's private key leaves for, or comes from, another node; no node has to run."""

import os
import sys
from pathlib import Path
from typing import Final

import click

from odf_common.errors import AlreadyExists, InvalidInput, NotFound, Unavailable
from odf_common.identity.did import DatasetId
from odf_common.identity.keys import PrivateKey
from odf_common.identity.refs import parse_ref
from odf_common.runtime.output import output_option, print_object, remark

LIMIT: Final = 1024  # bytes of a key's file; a key has a tenth of that
MODE: Final = 0o600


@click.group("key")
def command() -> None:
    """Take a dataset's private key to another node, which then may commit to its copy.

    Whoever has the key can write the dataset's history. Let one node commit: chains that two nodes append to diverge.

    \b
    Example:
      odf key export flights flights.key
      odf key import flights flights.key
    """  # noqa: D301 - click's mark for text that is not to be wrapped


@command.command("export")
@click.argument("dataset")
@click.argument("file", default="-")
def export(*, dataset: str, file: str) -> None:
    """Write the private key of DATASET to FILE, which only its owner may read; - is standard output.

    \b
    Example:
      odf key export flights flights.key
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    from odf_common.adapters.local.keys import dataset_key
    from odf_common.runtime.settings import load

    home = load().home
    text = dataset_key(home / "keys", _dataset(home, dataset)).text()
    if file == "-":
        click.echo(text)
    else:
        _write(file, text)
        remark(f"wrote the key of {dataset} to {file}; whoever reads it can commit as its owner")


@command.command("import")
@click.argument("dataset")
@click.argument("file")
@output_option
def import_(*, dataset: str, file: str, output: str) -> None:
    """Make the copy DATASET ours by its private key from FILE, or from standard input as -.

    From then on it can be committed to here; `odf pull DATASET` goes on with it.

    \b
    Example:
      odf key import flights flights.key
      odf pull flights
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    from odf_common.adapters.local.keys import dataset_key, keep_dataset_key
    from odf_common.runtime.settings import load

    home = load().home
    owner = _dataset(home, dataset)
    key = _read(file)
    if key.dataset_id != owner:
        raise InvalidInput(text=f"the key is that of {key.dataset_id}, not of {dataset}, {owner}", where=file)
    keep_dataset_key(home / "keys", key)
    dataset_key(home / "keys", owner)  # what lay there before may be damaged
    print_object({"dataset": dataset, "id": owner, "ours": True}, output)
    remark(f"`odf pull {dataset}` goes on with it here: topics of its push sources, or what its inputs have")


def _dataset(home: Path, ref: str) -> DatasetId:
    from odf_common.adapters.local import LocalCatalog

    catalog, parsed = LocalCatalog(home), parse_ref(ref)
    entry = catalog.by_id(parsed) if isinstance(parsed, DatasetId) else catalog.by_alias(str(parsed))
    if entry is None:
        raise NotFound(what=f"dataset {ref} in {home}")
    return entry.dataset_id


def _write(file: str, text: str) -> None:
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
    except FileExistsError as error:
        raise AlreadyExists(what=f"file {file}") from error
    except OSError as error:
        raise Unavailable(what=file, why=error.strerror) from error
    with os.fdopen(descriptor, "w") as opened:
        opened.write(text + "\n")


def _read(file: str) -> PrivateKey:
    try:
        with sys.stdin.buffer if file == "-" else Path(file).open("rb") as opened:
            text = opened.read(LIMIT).decode("ascii").strip()
    except FileNotFoundError as error:
        raise NotFound(what=f"file {file}") from error
    except OSError as error:
        raise Unavailable(what=file, why=error.strerror) from error
    except UnicodeDecodeError:
        text = ""
    try:
        return PrivateKey.parse(text)
    except InvalidInput as error:
        raise InvalidInput(text=error.text, where=file) from error
