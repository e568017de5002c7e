"""`odf search`: find datasets of this node and of named repositories."""

import time
from collections.abc import Iterable
from typing import Final

import click

from odf_common.cli import clients
from odf_common.cli.output import is_wide, output_option, print_rows, remark, shortened
from odf_common.metadata.scalars import Timestamp
from odf_common.proto.odf.node.v1.sync_pb2 import FoundDataset, SearchedRepository, SearchRequest

COLUMNS = ("dataset", "kind", "foundIn", "description")
SEARCH_TIMEOUT_SECONDS: Final = 600.0  # the first reading of the summaries of many datasets takes long
UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"))


@click.command("search")
@click.argument("words", nargs=-1, required=True, metavar="TEXT...")
@click.option("--repo", "repositories", multiple=True, metavar="NAME", help="Search only this repository.")
@click.option("--refresh", is_flag=True, help="Rebuild the indexes of repositories now.")
@output_option
def command(*, words: tuple[str, ...], repositories: tuple[str, ...], refresh: bool, output: str) -> None:
    """Find datasets by their names, keywords, columns and descriptions, here and in the repositories of `odf repo`.

    Every word of TEXT must occur in one of these; case is ignored. A node lists the datasets that you may read; in
    folders and buckets the chains themselves are read, which is slow the first time. The index of a repository is
    used for five minutes, and for as long as the repository cannot be reached. After 10 seconds without an answer the
    search ends without it; reading it continues in the background.

    \b
    Example:
      odf search flights
      odf search weather station --repo shop
      odf search orders --refresh --output json
    """
    request = SearchRequest(text=" ".join(words), repositories=repositories, refresh=refresh)
    with clients.sync() as sync:
        reply = sync.Search(request, timeout=SEARCH_TIMEOUT_SECONDS)
    ages = {repository.name: repository for repository in reply.repositories}
    rows = [_row(dataset, ages) for dataset in reply.datasets]
    if output == "table":
        rows = [
            {**row, "foundIn": ", ".join(dataset.found_in)}
            for row, dataset in zip(rows, reply.datasets, strict=True)
        ]
    shown = shortened(rows, "description") if output == "table" else rows
    print_rows(shown, output, columns=(*COLUMNS, "keywords", "columns", "id") if is_wide() else COLUMNS)
    if reply.left_out:
        remark(f"{reply.left_out} more were found; add words")
    for text in repository_lines(reply.repositories, time.time()):
        remark(text)


def repository_lines(repositories: Iterable[SearchedRepository], now: float) -> list[str]:
    """Return one line per repository: its number of datasets, the age of its index, and why it cannot be read."""
    return [_repository_line(repository, now) for repository in repositories]


def _repository_line(repository: SearchedRepository, now: float) -> str:
    problem = f"; it cannot be read now: {repository.problem}" if repository.problem else ""
    if not repository.read_at_ms:
        return f"{repository.name}: not searched{problem}"
    count = "1 dataset" if repository.datasets == 1 else f"{repository.datasets} datasets"
    return f"{repository.name}: {count} as of {_age(now - repository.read_at_ms / 1000)}{problem}"


def _age(seconds: float) -> str:
    for length, unit in UNITS:
        if seconds >= length:
            return f"{int(seconds / length)} {unit} ago"
    return f"{max(0, int(seconds))} s ago"


def _row(dataset: FoundDataset, searched: dict[str, SearchedRepository]) -> dict[str, object]:
    of = searched.get(dataset.repository)
    return {
        "dataset": dataset.name,
        "repository": dataset.repository or None,
        "id": dataset.dataset_id or None,
        "kind": dataset.kind or None,
        "foundIn": list(dataset.found_in),
        "description": dataset.description or None,
        "keywords": list(dataset.keywords),
        "columns": list(dataset.columns),
        "asOf": None if of is None or not of.read_at_ms else str(Timestamp.from_ms(of.read_at_ms)),
    }
