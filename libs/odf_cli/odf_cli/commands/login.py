"""`odf login URL`: a token of another node, stored for its origin; pulls and pushes send it."""

import click

from odf_cli import clients
from odf_cli.output import output_option, print_object, print_rows, remark
from odf_cli.user_input import enter_secret
from odf_common.proto.odf.node.v1.access_pb2 import ListLogInsRequest, LogInItem, LogInRequest


@click.command("login")
@click.argument("url", required=False)
@click.option("--user", metavar="ACCOUNT", help="Log in with the password of this account; prompts for it.")
@click.option("--password-file", metavar="FILE", help="Read the password from FILE; - is standard input.")
@click.option(
    "--token-file", metavar="FILE", help="Store the token in FILE instead of logging in; - is standard input."
)
@click.option("--insecure", is_flag=True, help="Allow an unencrypted connection to another machine.")
@output_option
def command(
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
    print_object(_row(_log_in(request)), output)


def _log_in(request: LogInRequest) -> LogInItem:
    done = LogInItem()
    with clients.access() as access:
        for progress in access.LogIn(request, timeout=clients.STREAM_TIMEOUT_SECONDS):
            if progress.open:
                remark(f"open this page and log in: {progress.open}")
            else:
                done = progress.done
    return done


def _row(item: LogInItem) -> dict[str, object]:
    return {"origin": item.origin, "account": item.account or None}
