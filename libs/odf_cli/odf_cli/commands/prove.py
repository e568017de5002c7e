"""`odf prove DATASET CHALLENGE`: prove or check that this node holds a dataset's private key; needs no running node."""

import click

from odf_cli.exit_codes import ExitCode
from odf_cli.name_lookup import dataset_argument
from odf_cli.output import output_option, print_object
from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.errors import InvalidInput, NotFound
from odf_common.hashing import multibase
from odf_common.identity.dataset_refs import parse_ref
from odf_common.identity.did import DatasetId
from odf_common.identity.signatures import prove_ownership, proves_ownership


@click.command("prove")
@dataset_argument
@click.argument("challenge")
@click.option("--check", "signature", metavar="SIGNATURE", help="Check a proof; DATASET must be an id.")
@output_option
def command(*, dataset: str, challenge: str, signature: str | None, output: str) -> int:
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
    """Return a challenge as UTF-8; raises `InvalidInput` if it is empty or not valid text."""
    if not challenge:
        raise InvalidInput(text="an empty challenge proves nothing: its proof could be replayed")
    try:
        return challenge.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            text="the challenge is not valid UTF-8; encode it, for example as base64"
        ) from error
