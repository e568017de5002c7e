"""`odf delete DATASET…`: derivatives before their inputs; refused while another dataset depends on one."""

from collections.abc import Iterable, Iterator

import click

from odf_cli import clients
from odf_cli.name_lookup import complete_dataset
from odf_cli.output import confirm, remark
from odf_common.chain.dependency_order import in_order
from odf_common.errors import DatasetInUse
from odf_common.identity.dataset_refs import is_pattern, matching_names, parse_ref
from odf_common.proto.odf.node.v1.coordinator_pb2 import (
    DatasetSummary,
    DeleteRequest,
    DescribeRequest,
    ListRequest,
)
from odf_common.proto.odf.node.v1.coordinator_pb2_grpc import CoordinatorStub


@click.command("delete")
@click.argument("datasets", nargs=-1, required=True, shell_complete=complete_dataset)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def command(*, datasets: tuple[str, ...], yes: bool) -> None:
    """Delete datasets with their chain, data and push topics; refused while another dataset is derived from them.

    DATASET is a name, an id, or a pattern of names in which % matches anything. Nothing is deleted unless all of
    them exist and can be deleted.

    \b
    Example:
      odf delete flights.late --yes
      odf delete 'flights.%'
    """
    with clients.coordinator() as coordinator:
        summaries = coordinator.List(ListRequest(), timeout=clients.COMMAND_TIMEOUT_SECONDS).datasets
        chosen = deletable(_select_datasets(coordinator, datasets, summaries), summaries)
        if not yes:
            confirm(f"Delete {', '.join(dataset.alias for dataset in chosen)} permanently?")
        for dataset in chosen:
            coordinator.Delete(DeleteRequest(ref=dataset.dataset_id), timeout=clients.COMMAND_TIMEOUT_SECONDS)
            remark(f"deleted {dataset.alias}")


def _select_datasets(
    coordinator: CoordinatorStub, refs: Iterable[str], summaries: Iterable[DatasetSummary]
) -> Iterator[DatasetSummary]:
    summaries = tuple(summaries)
    by_name = {dataset.alias: dataset for dataset in summaries}
    by_ref = {
        str(parse_ref(text)).lower(): dataset
        for dataset in summaries
        for text in (dataset.alias, dataset.dataset_id)
    }
    for ref in refs:
        if is_pattern(ref):
            yield from (by_name[name] for name in matching_names([ref], by_name))
        elif (dataset := by_ref.get(str(parse_ref(ref)).lower())) is not None:
            yield dataset
        else:  # it raises the exact error
            yield coordinator.Describe(DescribeRequest(ref=ref), timeout=clients.COMMAND_TIMEOUT_SECONDS)


def deletable(
    chosen: Iterable[DatasetSummary], summaries: Iterable[DatasetSummary]
) -> tuple[DatasetSummary, ...]:
    """Return the datasets, each once, readers before their inputs; raises `DatasetInUse` if others read one."""
    by_id = {dataset.dataset_id: dataset for dataset in chosen}
    readers_left: dict[str, list[str]] = {}
    for other in summaries:
        if other.dataset_id not in by_id:
            for input_ in dict.fromkeys(input_ for input_ in other.inputs if input_ in by_id):
                readers_left.setdefault(by_id[input_].alias, []).append(other.alias)
    if readers_left:
        read = "; ".join(f"{name} is read by {', '.join(readers)}" for name, readers in readers_left.items())
        raise DatasetInUse(text=f"{read}: delete its readers too, or first")
    readers = {
        id_: [dataset.dataset_id for dataset in by_id.values() if id_ in dataset.inputs] for id_ in by_id
    }
    return tuple(by_id[dataset] for dataset in in_order(readers))
