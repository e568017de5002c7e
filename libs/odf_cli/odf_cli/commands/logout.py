"""`odf logout URL`: delete the stored token of another node."""

import click

from odf_cli import clients
from odf_cli.output import output_option, print_object
from odf_common.proto.odf.node.v1.access_pb2 import LogOutRequest


@click.command("logout")
@click.argument("url")
@output_option
def command(*, url: str, output: str) -> None:
    """Delete the stored token of the node at URL. It stays valid there until it expires or is revoked.

    \b
    Example:
      odf logout https://node.example
    """
    with clients.access() as access:
        item = access.LogOut(LogOutRequest(url=url), timeout=clients.COMMAND_TIMEOUT_SECONDS)
    print_object({"origin": item.origin}, output)
