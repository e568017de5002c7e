"""`odf inspect schema|lineage|query|block|sources`: one aspect of a dataset, from its chain or this node's settings."""

from collections.abc import Iterator

import click

from odf_cli import clients
from odf_cli.name_lookup import dataset_argument, find_block, require_block_name
from odf_cli.output import echo, output_option, print_rows, remark
from odf_cli.suggestions import CommandGroup
from odf_common.adapters.grpc.client import calling
from odf_common.codec.flatbuffers import decode_event
from odf_common.codec.manifests import block_to_yaml, to_plain
from odf_common.errors import NotFound, Refused
from odf_common.metadata.events import DatasetKind, SetDataSchema, SetTransform, SetVocab, vocabulary_of
from odf_common.proto.odf.node.v1.coordinator_pb2 import LastEventReply, LastEventRequest, LogRequest
from odf_common.proto.odf.node.v1.coordinator_pb2_grpc import CoordinatorStub
from odf_common.proto.odf.node.v1.ingest_pb2 import SourceRequest


class NoSchema(Refused):
    """The dataset has no schema yet."""


class NoQuery(Refused):
    """The dataset has no query."""


@click.group("inspect", cls=CommandGroup)
def inspect_command() -> None:
    """Show one aspect of a dataset.

    \b
    Example:
      odf inspect schema flights
      odf inspect lineage flights.late
      odf inspect sources flights
    """


@inspect_command.command("schema")
@dataset_argument
@click.option(
    "--form",
    type=click.Choice(("arrow", "ddl", "odf")),
    default="arrow",
    show_default=True,
    help="Arrow types; column definitions as in manifests, without the columns that the node adds; or ODF types.",
)
@output_option
def schema(*, dataset: str, form: str, output: str) -> None:
    """Show the columns of a dataset: name, type, nullability.

    \b
    Example:
      odf inspect schema flights
      odf inspect schema flights --form ddl
    """
    import pyarrow as pa

    from odf_common.data.ddl import schema_to_ddl
    from odf_common.data.odf_schema import from_arrow
    from odf_common.data.schema_evolution import schema_of_event

    with clients.coordinator() as coordinator:
        event = _decode_event(_last_event(coordinator, dataset, SetDataSchema))
        vocab = _decode_event(_last_event(coordinator, dataset, SetVocab))
    if not isinstance(event, SetDataSchema):
        raise NoSchema(text=f"{dataset} has no data yet, so it has no schema")
    fields = schema_of_event(event)
    if form == "ddl":
        assert vocab is None or isinstance(vocab, SetVocab)
        names = vocabulary_of(vocab)
        added = {names.offset_column, names.operation_type_column, names.system_time_column}
        own = pa.schema([field for field in fields if field.name not in added])
        print_rows([{"definition": definition} for definition in schema_to_ddl(own)], output)
    elif form == "odf":
        print_rows([to_plain(field) for field in from_arrow(fields).fields], output)
    else:
        rows = [
            {"column": field.name, "type": str(field.type), "nullable": field.nullable} for field in fields
        ]
        print_rows(rows, output)


@inspect_command.command("query")
@dataset_argument
@output_option
def query(*, dataset: str, output: str) -> None:
    """Show the SQL steps of a derivative's query."""
    with clients.coordinator() as coordinator:
        answer = _last_event(coordinator, dataset, SetTransform)
    event = _decode_event(answer)
    if not isinstance(event, SetTransform):
        raise _no_query(answer)
    steps = event.transform.queries or ()
    rows = [{"step": step.alias or "(output)", "query": step.query} for step in steps]
    print_rows(rows, output)


def _no_query(answer: LastEventReply) -> NoQuery:
    if answer.kind == DatasetKind.Root.name:
        text = f"{answer.alias} is a root: its records come from its sources, not from a query"
    else:
        text = f"{answer.alias} has no query yet: `odf commit` sets one"
    return NoQuery(text=text)


@inspect_command.command("lineage")
@dataset_argument
@output_option
def lineage(*, dataset: str, output: str) -> None:
    """Show the inputs that a dataset is derived from, recursively, even those that are not on this node."""
    with clients.coordinator() as coordinator:
        rows = list(_lineage(coordinator, dataset, 0))
    if output == "table":
        rows = [
            {**row, "dataset": "  " * int(str(row["depth"])) + str(row["dataset"] or "(not on this node)")}
            for row in rows
        ]
    print_rows(rows, output, columns=("dataset", "kind", "alias", "id"))


@inspect_command.command("block")
@dataset_argument
@click.argument("block")
def block(*, dataset: str, block: str) -> None:
    """Show one block as YAML; BLOCK is a sequence number, a hash, or at least 8 characters of its beginning or end.

    \b
    Example:
      odf inspect block flights 5
      odf inspect block flights 3fd51a2c
    """
    require_block_name(block)
    with clients.coordinator() as coordinator:
        item = find_block(
            coordinator.Log(LogRequest(ref=dataset), timeout=clients.STREAM_TIMEOUT_SECONDS), dataset, block
        )
    echo(f"# Block: {item.hash}\n{block_to_yaml(item.content)}", is_line=False)


@inspect_command.command("sources")
@dataset_argument
@output_option
def sources(*, dataset: str, output: str) -> None:
    """Show the settings of a dataset's sources on this node; `odf source set` changes them.

    \b
    Example:
      odf inspect sources flights
    """
    with clients.ingest() as ingest:
        reply = ingest.ShowSources(SourceRequest(ref=dataset), timeout=clients.COMMAND_TIMEOUT_SECONDS)
    by_name = {
        source.name: source for source in reply.sources
    }  # a source of several topics has an entry for each of them
    rows = [
        {"source": name, "setting": key, "value": value, "isDefault": key not in source.changed}
        for name, source in by_name.items()
        for key, value in sorted(source.settings.items())
    ]
    if rows or output != "table":
        print_rows(rows, output)
    else:
        remark(f"{dataset} has no sources")


def _last_event(coordinator: CoordinatorStub, dataset: str, kind: type) -> LastEventReply:
    request = LastEventRequest(ref=dataset, kind=kind.__name__)
    answer: LastEventReply = coordinator.LastEvent(request, timeout=clients.COMMAND_TIMEOUT_SECONDS)
    return answer


def _decode_event(answer: LastEventReply) -> object:
    return decode_event(answer.event) if answer.event else None


def _lineage(
    coordinator: CoordinatorStub, ref: str, depth: int, alias: str = ""
) -> Iterator[dict[str, object]]:
    """Yield a row for a dataset, and then its inputs recursively; an input that is not on this node has only its id."""
    try:
        with calling("coordinator"):
            answer = _last_event(coordinator, ref, SetTransform)
    except NotFound:
        if not depth:
            raise
        yield {"dataset": None, "kind": None, "alias": alias, "id": ref, "depth": depth}
        return
    yield {
        "dataset": answer.alias, "kind": answer.kind, "alias": alias, "id": answer.dataset_id, "depth": depth,
    }  # fmt: skip
    event = _decode_event(answer)
    if isinstance(event, SetTransform):
        for input_ in event.inputs:
            yield from _lineage(coordinator, input_.dataset_ref, depth + 1, input_.alias or "")
