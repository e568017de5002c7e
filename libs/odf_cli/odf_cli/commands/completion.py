"""`odf completion`: a shell completion script for `odf`'s commands and options."""

import click
from click.shell_completion import get_completion_class

from odf_cli.output import echo


@click.command("completion", short_help="Print a completion script for your shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print a completion script for SHELL.

    \b
    Example:
      odf completion bash > ~/.local/share/bash-completion/completions/odf
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows these shells"
    echo(kind(ctx.find_root().command, {}, "odf", "_ODF_COMPLETE").source())
