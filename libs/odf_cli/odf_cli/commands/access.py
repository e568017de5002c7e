"""`odf access`: who may do what with a dataset."""

from typing import Final

import click

from odf_cli import clients
from odf_cli.name_lookup import dataset_argument
from odf_cli.output import output_option, print_object, remark
from odf_cli.suggestions import CommandGroup
from odf_cli.visibility import say_derivatives
from odf_common.proto.odf.node.v1.access_pb2 import ChangeAccessRequest, DatasetAccess, ShowAccessRequest

VISIBILITIES: Final = ("public", "private")
ROLES: Final = ("reader", "editor", "maintainer")


@click.group("access", cls=CommandGroup)
def command() -> None:
    """Show and change who may read and write a dataset over HTTP.

    Everyone may read a public dataset; a private one, only accounts with a role. A reader may read, an editor also
    write, a maintainer also replace history. The account in a dataset's name owns it. Only this command, on the
    node's machine, changes access: no role and no token does.

    \b
    Example:
      odf access set ann/flights --visibility public
      odf access grant ann/flights bob editor
    """


@command.command("show")
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
    print_object(_row(shown), output)


@command.command("set")
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


@command.command("grant")
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


@command.command("revoke")
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
    print_object(_row(shown), output)
    return shown


def _row(shown: DatasetAccess) -> dict[str, object]:
    return {
        "dataset": shown.dataset,
        "visibility": shown.visibility,
        "privateOrigins": list(shown.private_origins),
        "publishedOrigins": list(shown.published_origins),
        "roles": {role.account: role.role for role in shown.roles},
    }
