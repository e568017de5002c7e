"""Accounts: `odf account`, `token` and `access` of this node, `odf login` and `logout` of others."""

import re
from typing import Final

import click

from odf_cli import clients
from odf_cli.name_lookup import dataset_argument
from odf_cli.output import output_option, print_object, print_rows, remark
from odf_cli.suggestions import CommandGroup
from odf_cli.user_input import enter_secret
from odf_cli.visibility import say_derivatives
from odf_common.metadata.scalars import Timestamp
from odf_common.proto.odf.node.v1.access_pb2 import (
    AccountItem,
    AddAccountRequest,
    ChangeAccessRequest,
    CreateTokenRequest,
    DatasetAccess,
    ListAccountsRequest,
    ListLogInsRequest,
    ListTokensRequest,
    LogInItem,
    LogInRequest,
    LogOutRequest,
    RemoveAccountRequest,
    RevokeTokenRequest,
    SetPasswordRequest,
    ShowAccessRequest,
    TokenItem,
)

PASSWORD_FILE = click.option(
    "--password-file",
    metavar="FILE",
    help="Read the password from FILE; - is standard input.",
)
NO_PASSWORD = click.option("--no-password", is_flag=True, help="The account uses tokens only.")


@click.group("account", cls=CommandGroup)
def account_command() -> None:
    """Manage accounts, which can log in to this node and own datasets.

    On a multi-tenant node (ODF_TENANCY=multi), account ann owns the datasets named ann/…; on a single-tenant node,
    every account may write every dataset.

    \b
    Example:
      odf account add ann
      odf token create ann --label laptop
    """


@account_command.command("add")
@click.argument("name")
@PASSWORD_FILE
@NO_PASSWORD
@output_option
def add_account(*, name: str, password_file: str | None, no_password: bool, output: str) -> None:
    """Add an account; prompts for its password.

    \b
    Example:
      odf account add ann
      odf account add thermometer --no-password
    """
    request = AddAccountRequest(name=name, password=_password(password_file, no_password=no_password))
    with clients.access() as access:
        item = access.AddAccount(request, timeout=clients.COMMAND_TIMEOUT_SECONDS)
    print_object(_account_row(item), output)


@account_command.command("list")
@output_option
def list_accounts(*, output: str) -> None:
    """List the accounts.

    \b
    Example:
      odf account list
    """
    with clients.access() as access:
        reply = access.ListAccounts(ListAccountsRequest(), timeout=clients.COMMAND_TIMEOUT_SECONDS)
    print_rows([_account_row(item) for item in reply.accounts], output, columns=("name", "id"))


@account_command.command("password")
@click.argument("name")
@PASSWORD_FILE
@NO_PASSWORD
@output_option
def set_password(*, name: str, password_file: str | None, no_password: bool, output: str) -> None:
    """Replace an account's password. Its tokens stay valid.

    \b
    Example:
      odf account password ann
    """
    request = SetPasswordRequest(name=name, password=_password(password_file, no_password=no_password))
    with clients.access() as access:
        item = access.SetPassword(request, timeout=clients.COMMAND_TIMEOUT_SECONDS)
    print_object(_account_row(item), output)


@account_command.command("remove")
@click.argument("name")
@output_option
def remove_account(*, name: str, output: str) -> None:
    """Remove an account with its tokens and roles. Refused while it owns datasets.

    \b
    Example:
      odf account remove ann
    """
    with clients.access() as access:
        item = access.RemoveAccount(RemoveAccountRequest(name=name), timeout=clients.COMMAND_TIMEOUT_SECONDS)
    print_object(_account_row(item), output)


def _password(file: str | None, *, no_password: bool) -> str | None:
    if file is not None and no_password:
        raise click.UsageError("give --password-file or --no-password, not both")
    return None if no_password else enter_secret(file, "Password", is_new=True)


def _account_row(item: AccountItem) -> dict[str, object]:
    return {"name": item.name, "id": item.id}


NEVER: Final = "never"
SCOPES: Final = ("read", "write", "manage")
UNIT_SECONDS: Final = {"m": 60, "h": 3600, "d": 86400}
DURATION: Final = re.compile(r"([1-9]\d{0,4})([mhd])", re.ASCII)
TOKEN_COLUMNS: Final = ("id", "account", "label", "scope", "dataset", "created", "expires")


@click.group("token", cls=CommandGroup)
def token_command() -> None:
    """Create and revoke the tokens with which programs act as an account of this node.

    \b
    Example:
      odf token create ann --label laptop --expires 30d
      odf token list
      odf token revoke 0c5d8f1f6f2f4c1b
    """


@token_command.command("create")
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
    print_object({"token": reply.token, **_token_row(reply.item)}, output)
    remark("store the token now: only its hash is kept")


@token_command.command("list")
@output_option
def list_tokens(*, output: str) -> None:
    """List the tokens that have not been revoked, including those from logins.

    \b
    Example:
      odf token list
    """
    with clients.access() as access:
        reply = access.ListTokens(ListTokensRequest(), timeout=clients.COMMAND_TIMEOUT_SECONDS)
    print_rows([_token_row(item) for item in reply.tokens], output, columns=TOKEN_COLUMNS)


@token_command.command("revoke")
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


def _token_row(item: TokenItem) -> dict[str, object]:
    return {
        "id": item.id,
        "account": item.account,
        "label": item.label or None,
        "scope": item.scope,
        "dataset": item.dataset or None,
        "created": Timestamp.from_ms(item.created),
        "expires": Timestamp.from_ms(item.expires) if item.HasField("expires") else None,
    }


VISIBILITIES: Final = ("public", "private")
ROLES: Final = ("reader", "editor", "maintainer")


@click.group("access", cls=CommandGroup)
def access_command() -> None:
    """Show and change who may read and write a dataset over HTTP.

    Everyone may read a public dataset; a private one, only accounts with a role. A reader may read, an editor also
    write, a maintainer also replace history. The account in a dataset's name owns it. This command works on the
    node's machine only; owners elsewhere apply resources of the type Relations.

    \b
    Example:
      odf access set ann/flights --visibility public
      odf access grant ann/flights bob editor
    """


@access_command.command("show")
@dataset_argument
@output_option
def show_access(*, dataset: str, output: str) -> None:
    """Show a dataset's visibility and roles.

    \b
    Example:
      odf access show ann/flights
    """
    with clients.access() as access:
        shown = access.ShowAccess(ShowAccessRequest(ref=dataset), timeout=clients.COMMAND_TIMEOUT_SECONDS)
    print_object(_access_row(shown), output)


@access_command.command("set")
@dataset_argument
@click.option("--visibility", type=click.Choice(VISIBILITIES), required=True, help="Who may read it.")
@output_option
def set_access(*, dataset: str, visibility: str, output: str) -> None:
    """Make a dataset public or private.

    What comes from a private dataset is private, too, however many steps away, until you publish it; that covers the
    private datasets that it comes from then. The derivatives are listed with their visibility.

    \b
    Example:
      odf access set ann/flights --visibility public
    """
    shown = _change(ChangeAccessRequest(ref=dataset, visibility=visibility), output)
    if shown.published_origins:
        remark(f"published with it, as its query leaves them: {', '.join(shown.published_origins)}")
    say_derivatives(shown)


@access_command.command("grant")
@dataset_argument
@click.argument("account")
@click.argument("role", type=click.Choice(ROLES))
@output_option
def grant(*, dataset: str, account: str, role: str, output: str) -> None:
    """Give ACCOUNT a role, replacing its current one.

    \b
    Example:
      odf access grant ann/flights bob editor
    """
    _change(ChangeAccessRequest(ref=dataset, account=account, role=role), output)


@access_command.command("revoke")
@dataset_argument
@click.argument("account")
@output_option
def revoke(*, dataset: str, account: str, output: str) -> None:
    """Revoke the role of ACCOUNT.

    \b
    Example:
      odf access revoke ann/flights bob
    """
    _change(ChangeAccessRequest(ref=dataset, account=account), output)


def _change(request: ChangeAccessRequest, output: str) -> DatasetAccess:
    with clients.access() as access:
        shown: DatasetAccess = access.ChangeAccess(request, timeout=clients.COMMAND_TIMEOUT_SECONDS)
    print_object(_access_row(shown), output)
    return shown


def _access_row(shown: DatasetAccess) -> dict[str, object]:
    return {
        "dataset": shown.dataset,
        "visibility": shown.visibility,
        "privateOrigins": list(shown.private_origins),
        "publishedOrigins": list(shown.published_origins),
        "roles": {role.account: role.role for role in shown.roles},
        "byResources": [
            {"account": one.account or None, "right": one.right, "relations": one.by}
            for one in shown.by_resources
        ],
    }


@click.command("login")
@click.argument("url", required=False)
@click.option("--user", metavar="ACCOUNT", help="Log in with the password of this account; prompts for it.")
@click.option("--password-file", metavar="FILE", help="Read the password from FILE; - is standard input.")
@click.option(
    "--token-file", metavar="FILE", help="Store the token in FILE instead of logging in; - is standard input."
)
@click.option("--insecure", is_flag=True, help="Allow an unencrypted connection to another machine.")
@output_option
def login_command(
    *,
    url: str | None,
    user: str | None,
    password_file: str | None,
    token_file: str | None,
    insecure: bool,
    output: str,
) -> None:
    """Log in to the node at URL, by default in a browser; without URL, list the logins.

    \b
    Example:
      odf login https://node.example
      odf login https://node.example --user ann
      odf login https://node.example --token-file token.txt
    """
    if url is None:
        with clients.access() as access:
            reply = access.ListLogIns(ListLogInsRequest(), timeout=clients.COMMAND_TIMEOUT_SECONDS)
        print_rows([{"origin": origin} for origin in reply.origins], output, columns=("origin",))
        return
    if (user is not None) + (token_file is not None) > 1:
        raise click.UsageError("give --user or --token-file, not both")
    if password_file is not None and user is None:
        raise click.UsageError("--password-file needs --user")
    request = LogInRequest(url=url, insecure=insecure)
    if user is not None:
        request.password.login = user
        request.password.password = enter_secret(password_file, "Password")
    elif token_file is not None:
        request.token = enter_secret(token_file, "Token")
    print_object(_login_row(_log_in(request)), output)


def _log_in(request: LogInRequest) -> LogInItem:
    done = LogInItem()
    with clients.access() as access:
        for progress in access.LogIn(request, timeout=clients.STREAM_TIMEOUT_SECONDS):
            if progress.open:
                remark(f"open this page and log in: {progress.open}")
            else:
                done = progress.done
    return done


def _login_row(item: LogInItem) -> dict[str, object]:
    return {"origin": item.origin, "account": item.account or None}


@click.command("logout")
@click.argument("url")
@output_option
def logout_command(*, url: str, output: str) -> None:
    """Delete the stored token of the node at URL. It stays valid there until it expires or is revoked.

    \b
    Example:
      odf logout https://node.example
    """
    with clients.access() as access:
        item = access.LogOut(LogOutRequest(url=url), timeout=clients.COMMAND_TIMEOUT_SECONDS)
    print_object({"origin": item.origin}, output)
