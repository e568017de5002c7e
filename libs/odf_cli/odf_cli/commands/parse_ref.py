"""`odf parse-ref -- TEXT…`: how references are parsed, one JSON object per line; needs no node."""

import json
from typing import assert_never

import click

from odf_cli.output import echo
from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import (
    Alias,
    AmbiguousAlias,
    DatasetRefAny,
    RemoteAlias,
    RemoteId,
    Url,
    parse_ref_any,
)
from odf_common.identity.did import DatasetId


@click.command(name="parse-ref", epilog="\b\nExample:\n  odf parse-ref -- orders did:odf:fed01…")
@click.argument("texts", nargs=-1, required=True, metavar="-- TEXT…")
def command(texts: tuple[str, ...]) -> None:
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
