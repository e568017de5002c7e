"""Secrets of resources: `odf secret encrypt` encrypts one for a manifest, `odf secret rotate` replaces the keys."""

import sys
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

import click

from odf_cli import clients
from odf_cli.output import echo, output_option, print_object, remark
from odf_cli.suggestions import CommandGroup
from odf_cli.user_input import STDIN, absolute_url, enter_secret, fetch, read_limited, shown_name
from odf_common.adapters.local.secrets import MAX_SECRET_BYTES
from odf_common.errors import InvalidInput, Unavailable
from odf_common.service.protection import is_loopback

PUBLIC_KEYS: Final = "/.well-known/odf-jwks.json"
MAX_KEYS_BYTES: Final = 64 * 1024


@click.group("secret", cls=CommandGroup)
def secret_command() -> None:
    """Encrypt secrets for manifests, which can then be stored and shared; replace the node's keys.

    \b
    Example:
      odf secret encrypt < password
    """


@secret_command.command("encrypt")
@click.option("--node", "url", metavar="URL", help="Encrypt for the node at URL instead of this node.")
@click.option("--key", "file", metavar="FILE", help="Encrypt to the public key in FILE: a JWK, or a JWK set.")
@click.option("--account", metavar="NAME", help="Let only resources of this account use it.")
def encrypt(*, url: str | None, file: str | None, account: str | None) -> None:
    """Encrypt the secret on standard input, and print it for a manifest: `value`, with `contentEncoding: jwe`.

    A last end of line is not part of the secret; on a terminal, it is typed without echo. Only the node can decrypt
    the result. It differs each time, but applying it again changes nothing. Without --account, anyone who has it, and
    an account of the node, can use the secret there.

    \b
    Example:
      odf secret encrypt < password
      odf secret encrypt --node https://node.example --account ann < password
      curl https://node.example/.well-known/odf-jwks.json > node.jwks
      odf secret encrypt --key node.jwks < password
    """
    if url is not None and file is not None:
        raise click.UsageError("give either --node or --key")
    from odf_common.resources.secret_encryption import encrypt_for_node
    from odf_common.resources.secret_keys import public_key

    where = file or _keys_url(url)
    content = fetch(where, MAX_KEYS_BYTES) if file is None else read_limited(file, MAX_KEYS_BYTES)
    try:
        key = public_key(content.decode("utf-8", "replace"))
    except InvalidInput as error:
        raise InvalidInput(text=error.text, where=where) from error
    echo(encrypt_for_node(_secret(), key, account))


@secret_command.command("rotate")
@click.option("--drop-former", is_flag=True, help="Add no keys, but drop the former ones.")
@output_option
def rotate(*, drop_former: bool, output: str) -> None:
    """Replace the keys that encrypt the secrets of this node, and encrypt all stored secrets by the new ones.

    Resources do not change by it. Former keys stay in the file, so that manifests with secrets that clients encrypted
    to them, and backups, can still be applied. With --drop-former they are dropped, after no stored secret needs them:
    such manifests have to be encrypted again.

    \b
    Example:
      odf secret rotate
      odf secret rotate --drop-former
    """
    from odf_common.proto.odf.node.v1.resources_pb2 import RotateSecretKeysRequest

    with clients.resources() as resources:
        request = RotateSecretKeysRequest(drop_former=drop_former)
        done = resources.RotateSecretKeys(request, timeout=clients.STREAM_TIMEOUT_SECONDS)
    for name in done.unreadable:
        remark(f"{name} has a secret that no key opens; apply it again")
    print_object({"key": done.kid, "secrets": done.rewrapped, "keys": done.keys}, output)


def _secret() -> str:
    """Return the secret from standard input; raises `InvalidInput` if it is empty or not UTF-8.

    On a terminal the secret is typed without echo.
    """
    if sys.stdin.isatty():
        return enter_secret(None, "Secret", is_new=True)
    content = read_limited(STDIN, MAX_SECRET_BYTES)
    try:
        secret = content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise InvalidInput(where=shown_name(STDIN), text="not UTF-8") from None  # its error quotes the secret
    if not secret:
        raise InvalidInput(where=shown_name(STDIN), text="expected a secret, found nothing")
    return secret


def _keys_url(url: str | None) -> str:
    """Return the URL of a node's public keys; raises `InvalidInput` for a connection that others could intercept."""
    if url is None:
        served = clients.this_node().http
        if served is None:
            raise Unavailable(what="the HTTP server of this node", why="the node does not run sync")
        return served + PUBLIC_KEYS
    with suppress(ValueError):
        parts = urlsplit(absolute_url(url))
        host = parts.hostname or ""
        if (parts.scheme == "https" and host) or (parts.scheme == "http" and is_loopback(host)):
            return url.rstrip("/") + PUBLIC_KEYS
    text = f"expected https://HOST, got {url!r}; a key that comes without TLS could be another's"
    raise InvalidInput(text=f"{text}. Get the key in another way, and give it with --key")
