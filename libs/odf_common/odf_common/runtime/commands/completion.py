"""`odf completion`: a script that makes the shell complete `odf`'s commands and options."""

import click
from click.shell_completion import get_completion_class


@click.command("completion", short_help="Print a script for the shell's completion.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print a script that makes SHELL complete `odf`.

    \b
    Example:
      odf completion bash > ~/.local/share/bash-completion/completions/odf
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    kind = get_completion_class(shell)
    assert kind is not None, "click knows these shells"
    click.echo(kind(ctx.find_root().command, {}, "odf", "_ODF_COMPLETE").source())
