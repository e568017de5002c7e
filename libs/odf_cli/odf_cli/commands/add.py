"""`odf add FILE|DIR|URL|-…`: create datasets from DatasetSnapshot manifests."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlparse

import click

from odf_cli import clients
from odf_cli.output import output_option, print_rows
from odf_cli.user_input import STDIN, read_limited, require_short, shown_name
from odf_cli.visibility import say_if_private
from odf_common.codec.manifests import snapshots_from_text
from odf_common.errors import InvalidInput, NotFound, Unavailable
from odf_common.proto.odf.node.v1.coordinator_pb2 import AddRequest

ENDINGS = (".yaml", ".yml", ".json")
MAX_MANIFEST_BYTES = 16 * 1024 * 1024  # of one manifest
FETCH_TIMEOUT_SECONDS = 30  # to fetch a manifest


@click.command("add")
@click.argument("manifests", nargs=-1, required=True)
@click.option("-r", "--recursive", is_flag=True, help="Search folders recursively.")
@click.option("--replace", is_flag=True, help="Update datasets that already exist.")
@output_option
def command(*, manifests: tuple[str, ...], recursive: bool, replace: bool, output: str) -> None:
    """Create datasets from manifests: files, folders, URLs, or - for standard input.

    Inputs are created before the datasets derived from them. Adding the same manifest again changes nothing.

    \b
    Example:
      odf add examples/nycflights
    """
    request = AddRequest(replace=replace)
    for where in manifests:
        for name, text in _read(where, recursive=recursive):
            request.manifests.add(name=name, text=text)
    if not request.manifests:
        raise NotFound(what=f"a manifest ({', '.join(ENDINGS)}) in {', '.join(manifests)}")
    clients.require_owners(_names(request))
    with clients.coordinator() as coordinator:
        reply = coordinator.Add(request, timeout=clients.COMMAND_TIMEOUT_SECONDS)
    say_if_private(result.alias for result in reply.results if result.outcome != "unchanged")
    rows = [
        {"alias": result.alias, "outcome": result.outcome, "id": result.dataset_id, "head": result.head}
        for result in reply.results
    ]
    print_rows(rows, output, columns=("alias", "outcome", "id"))


def _names(request: AddRequest) -> Iterator[str]:
    """Yield the names of the datasets in manifests; the node says what is wrong with a manifest that has none."""
    for manifest in request.manifests:
        with suppress(InvalidInput):
            yield from (snapshot.name for snapshot in snapshots_from_text(manifest.text, manifest.name))


def _read(where: str, *, recursive: bool) -> Iterator[tuple[str, bytes]]:
    if where == STDIN:
        yield shown_name(where), read_limited(where, MAX_MANIFEST_BYTES)
    elif urlparse(where).scheme in ("http", "https"):
        yield where, _fetch(where)
    elif Path(where).is_dir():
        paths = Path(where).rglob("*") if recursive else Path(where).iterdir()
        yield from (
            (str(file), read_limited(str(file), MAX_MANIFEST_BYTES))
            for file in sorted(paths)
            if file.suffix in ENDINGS and file.is_file()
        )
    else:
        yield where, read_limited(where, MAX_MANIFEST_BYTES)


def _fetch(url: str) -> bytes:
    from urllib.request import urlopen

    try:
        with urlopen(url, timeout=FETCH_TIMEOUT_SECONDS) as answer:  # noqa: S310 - http and https only, see the caller
            content: bytes = answer.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise Unavailable(what=url, why=str(error)) from error
    require_short(content, MAX_MANIFEST_BYTES, url)
    return content
