"""`odf token`: bearer tokens of this node's accounts."""

import re
from typing import Final

import click

from odf_cli import clients
from odf_cli.output import output_option, print_object, print_rows, remark
from odf_cli.suggestions import CommandGroup
from odf_common.metadata.scalars import Timestamp
from odf_common.proto.odf.node.v1.access_pb2 import (
    CreateTokenRequest,
    ListTokensRequest,
    RevokeTokenRequest,
    TokenItem,
)

NEVER: Final = "never"
SCOPES: Final = ("read", "write", "manage")
UNIT_SECONDS: Final = {"m": 60, "h": 3600, "d": 86400}
DURATION: Final = re.compile(r"([1-9]\d{0,4})([mhd])", re.ASCII)
COLUMNS: Final = ("id", "account", "label", "scope", "dataset", "created", "expires")


@click.group("token", cls=CommandGroup)
def command() -> None:
    """Create and revoke the tokens with which programs act as an account of this node.

    \b
    Example:
      odf token create ann --label laptop --expires 30d
      odf token list
      odf token revoke 0c5d8f1f6f2f4c1b
    """


@command.command("create")
@click.argument("account")
@click.option("--label", default="", help="What the token is for.")
@click.option(
    "--scope",
    type=click.Choice(SCOPES),
    default="manage",
    show_default=True,
    help="The most that the token allows; the account's roles still apply.",
)
@click.option("--dataset", default="", metavar="DATASET", help="Restrict the token to this dataset.")
@click.option(
    "--expires",
    default="90d",
    show_default=True,
    metavar="DURATION",
    help="Lifetime in minutes, hours or days (30m, 12h, 90d), or never.",
)
@output_option
def create_token(*, account: str, label: str, scope: str, dataset: str, expires: str, output: str) -> None:
    """Create a token for ACCOUNT, and print it. It cannot be shown again.

    \b
    Example:
      odf token create ann --label laptop
      odf token create thermometer --scope write --dataset lab.thermo --expires never
    """
    request = CreateTokenRequest(
        account=account, label=label, scope=scope, dataset=dataset, seconds=_seconds(expires)
    )
    with clients.access() as access:
        reply = access.CreateToken(request, timeout=clients.COMMAND_TIMEOUT_SECONDS)
    print_object({"token": reply.token, **_row(reply.item)}, output)
    remark("store the token now: only its hash is kept")


@command.command("list")
@output_option
def list_tokens(*, output: str) -> None:
    """List the tokens that have not been revoked, including those from logins.

    \b
    Example:
      odf token list
    """
    with clients.access() as access:
        reply = access.ListTokens(ListTokensRequest(), timeout=clients.COMMAND_TIMEOUT_SECONDS)
    print_rows([_row(item) for item in reply.tokens], output, columns=COLUMNS)


@command.command("revoke")
@click.argument("token", metavar="ID")
def revoke_token(*, token: str) -> None:
    """Revoke the token with this ID, as printed by `odf token list`; it is invalid at once.

    \b
    Example:
      odf token revoke 0c5d8f1f6f2f4c1b
    """
    with clients.access() as access:
        access.RevokeToken(RevokeTokenRequest(id=token), timeout=clients.COMMAND_TIMEOUT_SECONDS)


def _seconds(text: str) -> int | None:
    if text == NEVER:
        return None
    match = DURATION.fullmatch(text)
    if match is None:
        raise click.BadParameter(f"expected 30m, 12h, 90d or never, got {text!r}", param_hint="--expires")
    return int(match[1]) * UNIT_SECONDS[match[2]]


def _row(item: TokenItem) -> dict[str, object]:
    return {
        "id": item.id,
        "account": item.account,
        "label": item.label or None,
        "scope": item.scope,
        "dataset": item.dataset or None,
        "created": Timestamp.from_ms(item.created),
        "expires": Timestamp.from_ms(item.expires) if item.HasField("expires") else None,
    }
