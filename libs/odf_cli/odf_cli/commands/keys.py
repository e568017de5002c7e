"""Keys of datasets: `odf key export|import` moves a key between nodes, `odf prove` signs with it. No node must run."""

import os
from pathlib import Path
from typing import Final

import click

from odf_cli.exit_codes import ExitCode
from odf_cli.name_lookup import dataset_argument
from odf_cli.output import echo, output_option, print_object, remark
from odf_cli.suggestions import CommandGroup
from odf_cli.user_input import read_limited
from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.local.durable import PRIVATE
from odf_common.errors import AlreadyExists, InvalidInput, NotFound, Unavailable
from odf_common.hashing import multibase
from odf_common.identity.dataset_refs import DatasetId, parse_ref
from odf_common.identity.keys import PrivateKey, prove_ownership, proves_ownership

MAX_KEY_BYTES: Final = 1024  # of a key file; a key has a tenth of that


@click.group("key", cls=CommandGroup)
def key_command() -> None:
    """Move a dataset's private key to another node, which can then commit to its copy.

    Anyone with the key can write the dataset's history. Only one node should commit: if two do, the chains diverge.

    \b
    Example:
      odf key export flights flights.key
      odf key import flights flights.key
    """


@key_command.command("export")
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


@key_command.command("import")
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


@click.command("prove")
@dataset_argument
@click.argument("challenge")
@click.option("--check", "signature", metavar="SIGNATURE", help="Check a proof; DATASET must be an id.")
@output_option
def prove_command(*, dataset: str, challenge: str, signature: str | None, output: str) -> int:
    """Prove ownership of a dataset by signing a challenge with its private key.

    The verifying party chooses a CHALLENGE that was never used before, and checks the proof with the dataset's id
    alone, on any machine. Exit status 3: the proof is not valid for that dataset and challenge. Needs no running node.

    \b
    Example:
      odf prove flights 'Tuesday, 4711'
      odf prove did:odf:fed01… 'Tuesday, 4711' --check f5a3c…
    """
    content = _bytes_of(challenge)
    if signature is not None:
        return _check(dataset, challenge, signature, output)
    proof = _prove(dataset, content)
    print_object({"dataset": proof[0], "challenge": challenge, "signature": proof[1]}, output)
    return ExitCode.OK


def _prove(dataset: str, challenge: bytes) -> tuple[DatasetId, str]:
    from odf_common.adapters.local.key_files import dataset_key
    from odf_common.service.settings import load

    home = load().home
    ref = parse_ref(dataset)
    if not isinstance(ref, DatasetId):
        entry = LocalCatalog(home).by_alias(str(ref))
        if entry is None:
            raise NotFound(what=f"dataset {dataset} in {home}")
        ref = entry.dataset_id
    return ref, multibase.encode(prove_ownership(dataset_key(home / "keys", ref), challenge))


def _check(dataset: str, challenge: str, signature: str, output: str) -> int:
    owner = DatasetId.parse(dataset)
    try:
        raw = multibase.decode(signature)
    except InvalidInput:
        raw = b""  # an unreadable proof is invalid, not an error
    is_valid = proves_ownership(owner, challenge=_bytes_of(challenge), signature=raw)
    print_object(
        {"dataset": owner, "challenge": challenge, "proof": "valid" if is_valid else "invalid"}, output
    )
    return ExitCode.OK if is_valid else ExitCode.VERIFICATION_FAILED


def _bytes_of(challenge: str) -> bytes:
    """Return a challenge in UTF-8; raises `InvalidInput` if it is empty or not valid Unicode."""
    if not challenge:
        raise InvalidInput(text="an empty challenge proves nothing: its proof could be replayed")
    try:
        return challenge.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            text="the challenge is not valid UTF-8; encode it, for example as base64"
        ) from error
