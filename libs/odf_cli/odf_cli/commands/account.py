"""`odf account`: the accounts of this node."""

import click

from odf_cli import clients
from odf_cli.output import output_option, print_object, print_rows
from odf_cli.suggestions import CommandGroup
from odf_cli.user_input import enter_secret
from odf_common.proto.odf.node.v1.access_pb2 import (
    AccountItem,
    AddAccountRequest,
    ListAccountsRequest,
    RemoveAccountRequest,
    SetPasswordRequest,
)

PASSWORD_FILE = click.option(
    "--password-file",
    metavar="FILE",
    help="Read the password from FILE; - is standard input.",
)
NO_PASSWORD = click.option("--no-password", is_flag=True, help="The account uses tokens only.")


@click.group("account", cls=CommandGroup)
def command() -> None:
    """Manage accounts, which can log in to this node and own datasets.

    On a multi-tenant node (ODF_TENANCY=multi), account ann owns the datasets named ann/…; on a single-tenant node,
    every account may write every dataset.

    \b
    Example:
      odf account add ann
      odf token create ann --label laptop
    """


@command.command("add")
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
    print_object(_row(item), output)


@command.command("list")
@output_option
def list_accounts(*, output: str) -> None:
    """List the accounts.

    \b
    Example:
      odf account list
    """
    with clients.access() as access:
        reply = access.ListAccounts(ListAccountsRequest(), timeout=clients.COMMAND_TIMEOUT_SECONDS)
    print_rows([_row(item) for item in reply.accounts], output, columns=("name", "id"))


@command.command("password")
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
    print_object(_row(item), output)


@command.command("remove")
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
    print_object(_row(item), output)


def _password(file: str | None, *, no_password: bool) -> str | None:
    if file is not None and no_password:
        raise click.UsageError("give --password-file or --no-password, not both")
    return None if no_password else enter_secret(file, "Password", is_new=True)


def _row(item: AccountItem) -> dict[str, object]:
    return {"name": item.name, "id": item.id}
