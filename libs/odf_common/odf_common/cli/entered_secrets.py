"""Secrets that users enter: typed without echo, or from a file. Never an argument, which every process could read."""

import sys
from pathlib import Path

import click

from odf_common.adapters.secrets import MAX_SECRET_BYTES, read_secret, secret_in
from odf_common.cli.files import STDIN, shown_name


def enter_secret(file: str | None, prompt: str, *, is_new: bool = False) -> str:
    """Return the secret in a file, or what the user types without one; a new secret is typed twice.

    Raises `UsageError` if there is neither a file nor a terminal to ask on, and `InvalidInput` for another content.
    """
    if file == STDIN:
        return secret_in(sys.stdin.buffer.read(MAX_SECRET_BYTES + 1), shown_name(file))
    if file is not None:
        return read_secret(Path(file))
    if not sys.stdin.isatty():
        raise click.UsageError(f"there is no terminal to ask for the {prompt.lower()} on; give it in a file")
    typed: str = click.prompt(prompt, hide_input=True, confirmation_prompt=is_new, err=True)
    return typed
