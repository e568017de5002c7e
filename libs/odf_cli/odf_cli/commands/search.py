"""`odf search`: find datasets of this node and of named repositories."""

from collections.abc import Iterable
from typing import Final

import click

from odf_cli import clients
from odf_cli.output import is_wide, output_option, print_rows, remark, shorten_rows
from odf_common.errors import count_of
from odf_common.proto.odf.node.v1.sync_pb2 import FoundDataset, SearchedRepository, SearchRequest

COLUMNS = ("dataset", "kind", "foundIn", "description")
SEARCH_TIMEOUT_SECONDS: Final = 60.0


@click.command("search")
@click.argument("words", nargs=-1, required=True, metavar="TEXT...")
@click.option("--repo", "repositories", multiple=True, metavar="NAME", help="Search only this repository.")
@output_option
def command(*, words: tuple[str, ...], repositories: tuple[str, ...], output: str) -> None:
    """Find datasets by their names, keywords, columns and descriptions, here and in the repositories of `odf repo`.

    Every word of TEXT must occur in one of these; case is ignored. A node lists the datasets that you may read; of
    folders and buckets only the names are searched. A repository that does not answer within 10 seconds is left out.

    \b
    Example:
      odf search flights
      odf search weather station --repo shop
      odf search orders --output json
    """
    request = SearchRequest(text=" ".join(words), repositories=repositories)
    with clients.sync() as sync:
        reply = sync.Search(request, timeout=SEARCH_TIMEOUT_SECONDS)
    rows = [_row(dataset) for dataset in reply.datasets]
    if output == "table":
        rows = [
            {**row, "foundIn": ", ".join(dataset.found_in)}
            for row, dataset in zip(rows, reply.datasets, strict=True)
        ]
    shown = shorten_rows(rows, "description") if output == "table" else rows
    print_rows(shown, output, columns=(*COLUMNS, "keywords", "columns", "id") if is_wide() else COLUMNS)
    if reply.left_out:
        remark(f"{reply.left_out} more were found; add words")
    for text in repository_lines(reply.repositories):
        remark(text)


def repository_lines(repositories: Iterable[SearchedRepository]) -> list[str]:
    """Return one line per repository: its number of datasets, or the reason for which it was not searched."""
    return [_repository_line(repository) for repository in repositories]


def _repository_line(repository: SearchedRepository) -> str:
    if repository.problem:
        return f"{repository.name}: not searched: {repository.problem}"
    return f"{repository.name}: {count_of(repository.datasets, 'dataset')}"


def _row(dataset: FoundDataset) -> dict[str, object]:
    return {
        "dataset": dataset.name,
        "repository": dataset.repository or None,
        "id": dataset.dataset_id or None,
        "kind": dataset.kind or None,
        "foundIn": list(dataset.found_in),
        "description": dataset.description or None,
        "keywords": list(dataset.keywords),
        "columns": list(dataset.columns),
    }
