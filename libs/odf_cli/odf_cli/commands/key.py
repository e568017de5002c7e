"""`odf key export|import`: move a dataset's private key between nodes; needs no running node."""

import os
from pathlib import Path
from typing import Final

import click

from odf_cli.name_lookup import dataset_argument
from odf_cli.output import echo, output_option, print_object, remark
from odf_cli.suggestions import CommandGroup
from odf_cli.user_input import read_limited
from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.local.durable import PRIVATE
from odf_common.errors import AlreadyExists, InvalidInput, NotFound, Unavailable
from odf_common.identity.did import DatasetId
from odf_common.identity.keys import PrivateKey

MAX_KEY_BYTES: Final = 1024  # of a key file; a key has a tenth of that


@click.group("key", cls=CommandGroup)
def command() -> None:
    """Move a dataset's private key to another node, which can then commit to its copy.

    Anyone with the key can write the dataset's history. Only one node should commit: if two do, the chains diverge.

    \b
    Example:
      odf key export flights flights.key
      odf key import flights flights.key
    """


@command.command("export")
@dataset_argument
@click.argument("file", default="-")
def export(*, dataset: str, file: str) -> None:
    """Write the private key of DATASET to FILE, readable by its owner only; - is standard output.

    \b
    Example:
      odf key export flights flights.key
    """
    from odf_common.adapters.local.key_files import dataset_key
    from odf_common.service.settings import load

    home = load().home
    text = dataset_key(home / "keys", _dataset(home, dataset)).text()
    if file == "-":
        echo(text)
    else:
        _write(file, text)
        remark(f"wrote the key of {dataset} to {file}; anyone who reads it can commit as the owner")


@command.command("import")
@dataset_argument
@click.argument("file")
@output_option
def import_(*, dataset: str, file: str, output: str) -> None:
    """Take ownership of the copy DATASET with its private key from FILE; - is standard input.

    After that, this node can commit to it; `odf pull DATASET` continues it.

    \b
    Example:
      odf key import flights flights.key
      odf pull flights
    """
    from odf_common.adapters.local.key_files import (
        dataset_key,
        has_dataset_key,
        keep_dataset_key,
        mark_imported,
    )
    from odf_common.service.settings import load

    home = load().home
    owner = _dataset(home, dataset)
    key = _read(file)
    if key.dataset_id != owner:
        raise InvalidInput(text=f"the key belongs to {key.dataset_id}, not to {dataset}, {owner}", where=file)
    if not has_dataset_key(home / "keys", owner):
        mark_imported(home / "keys", owner)  # first, so that a kill leaves no key without it
    keep_dataset_key(home / "keys", key)
    dataset_key(home / "keys", owner)  # raises if a damaged file was there before
    print_object({"dataset": dataset, "id": owner, "ours": True}, output)
    remark(f"`odf pull {dataset}` continues it on this node: from its push topics, or from its inputs")


def _dataset(home: Path, ref: str) -> DatasetId:
    from odf_common.ports.store import find_entry

    entry = find_entry(LocalCatalog(home), ref)
    if entry is None:
        raise NotFound(what=f"dataset {ref} in {home}")
    return entry.dataset_id


def _write(file: str, text: str) -> None:
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    except FileExistsError as error:
        raise AlreadyExists(what=f"file {file}") from error
    except OSError as error:
        raise Unavailable(what=file, why=error.strerror) from error
    with os.fdopen(descriptor, "w") as opened:
        opened.write(text + "\n")


def _read(file: str) -> PrivateKey:
    try:
        text = read_limited(file, MAX_KEY_BYTES).decode("ascii").strip()
    except (InvalidInput, UnicodeDecodeError):
        text = ""  # no key is as long, or has other characters
    try:
        return PrivateKey.parse(text)
    except InvalidInput as error:
        raise InvalidInput(text=error.text, where=file) from error
