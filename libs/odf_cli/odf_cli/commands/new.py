"""`odf new NAME --from FILE|topic:NAME`: the manifest of a root dataset, from a sample of its data."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from odf_cli import clients
from odf_cli.embedded.node_file import Node
from odf_cli.output import echo, remark
from odf_cli.user_input import read_options, with_read_options
from odf_common.adapters.local import durable
from odf_common.adapters.local.process_files import Staging
from odf_common.adapters.local.secrets import keep_private
from odf_common.errors import AlreadyExists, InvalidInput, NotFound, OdfError, Refused
from odf_common.identity.dataset_refs import parse_alias
from odf_common.proto.odf.node.v1.ingest_pb2 import LateRecords, SampleReply, SampleRequest

TOPIC: Final = "topic:"
SAMPLED_MESSAGES: Final = 10_000  # of a topic that are looked at
CHUNK_BYTES: Final = 1024 * 1024
SUFFIX_FORMATS: Final = {
    ".csv": "csv",
    ".geojson": "geojson",
    ".json": "json",
    ".jsonl": "ndjson",
    ".ndjson": "ndjson",
    ".parquet": "parquet",
    ".tsv": "csv",
    ".zip": "esrishapefile",
}


@click.command("new")
@click.argument("name")
@click.option(
    "--from", "sample", required=True, metavar="FILE|topic:NAME", help="A file, or a topic of JSON messages."
)
@click.option(
    "--input-format",
    metavar="FORMAT",
    default="",
    help="Format of the file. Default: from its extension. One of csv, json, ndjson, parquet, geojson, …",
)
@read_options
@click.option(
    "-o", "--out", metavar="FILE", help="Write the manifest to a new file instead of standard output."
)
def new_command(
    *, name: str, sample: str, input_format: str, options: Sequence[tuple[str, str]], out: str | None
) -> None:
    """Write the manifest of a root dataset NAME from a sample of its data. Nothing is added to the node.

    Columns and types are inferred from the whole file, or from the first 10,000 messages of the topic; so are the
    separator, quote and escape of a Csv file, and the unit of times since 1970. A Csv column is a number only if each
    value is printed as it was written. If times are out of order, a watermarkDelay is proposed. Check and edit the
    manifest, then create the dataset with `odf add`.

    \b
    Example:
      odf new orders --from orders.csv -o orders.yaml
      odf add orders.yaml
      odf ingest orders orders.csv
      odf new orders --from orders.csv --read-option nullValue=n/a
      odf new clicks --from topic:shop.clicks
    """
    import pyarrow as pa

    from odf_cli.manifest_draft import READ_KINDS, draft, key_of_changes

    parse_alias(name)
    form = input_format.lower() or ("ndjson" if sample.startswith(TOPIC) else _format_of(sample))
    if form not in READ_KINDS:
        raise click.BadParameter(
            f"expected one of {', '.join(READ_KINDS)}, got {form!r}", param_hint="--input-format"
        )
    reply, messages = _reply(sample, form, options)
    columns = pa.ipc.read_schema(pa.py_buffer(reply.schema))
    key = key_of_changes(messages, columns) if reply.is_changes else None
    manifest = draft(name, form, columns, reply.options, key_of_changes=key)
    if out is None:
        echo(manifest.text, is_line=False)
    else:
        _write(Path(out), manifest.text)
        remark(f"wrote {out}: {reply.records} records have these columns; `odf add {out}` creates {name}")
    for note in (*reply.remarks, *manifest.remarks):
        remark(note)
    if sample.startswith(TOPIC):
        remark(_topic(name, sample.removeprefix(TOPIC), is_changes=reply.is_changes))
    if manifest.event_time in reply.late:
        remark(_lateness(name, manifest.event_time, reply.late[manifest.event_time]))


def _reply(
    sample: str, form: str, options: Sequence[tuple[str, str]]
) -> tuple[SampleReply, list[bytes | None]]:
    """Return the findings of the node about the sample, and the keys of its messages; raises `SampleRefused`."""
    node = clients.this_node()
    keep_private(node.home)
    with Staging(node.home).holding() as staged:
        runs, keys, content = _content(node, sample)
        for _ in staged.write(content):
            pass
        described = with_read_options(form, options)
        request = SampleRequest(staged=staged.name, input_format=described, runs=runs)
        try:
            with clients.ingest(node) as ingest:
                reply: SampleReply = ingest.Sample(request, timeout=clients.STREAM_TIMEOUT_SECONDS)
        except (InvalidInput, Refused) as error:
            raise SampleRefused(text=f"{sample}: {error}", form=form, error=error) from error
    return reply, keys


class SampleRefused(Refused):
    """A manifest cannot be written from the sample; `text` names the sample and the reason."""

    form: str
    error: OdfError

    def advice(self) -> str:
        """Return the advice on what to try next."""
        if self.error.advice():
            return self.error.advice()
        if self.form == "csv":
            return (
                "correct the sample; or if its separator, quote, escape or encoding was not found, give it: "
                "--read-option 'separator=;', --read-option encoding=latin-1"
            )
        return f"correct the sample; or if it is not {self.form}, give its format: --input-format"


def _topic(name: str, topic: str, *, is_changes: bool) -> str:
    if not is_changes:
        return (
            f"{name} has its own topic: `odf source set {name} topics={topic}` after `odf add` reads {topic}"
        )
    return (
        "the messages are changes of a table in Debezium's envelope, and these are its columns: `odf source set "
        f"{name} envelope=debezium topics={topic}` after `odf add` reads {topic}; the event time of a change is that "
        "of its source"
    )


def _lateness(name: str, column: str, late: LateRecords) -> str:
    return (
        f"{late.records} records have a time in {column} that is earlier than one before them, by up to {late.most}: "
        "published one by one in this order they would be late for windows; "
        f"`odf source set {name} watermarkDelay={late.proposed_delay}` after `odf add` prevents that"
    )


def _format_of(file: str) -> str:
    suffix = Path(file).suffix.lower()
    if suffix not in SUFFIX_FORMATS:
        raise click.UsageError(f"the format cannot be inferred from the name {file}; give --input-format")
    return SUFFIX_FORMATS[suffix]


def _content(node: Node, sample: str) -> tuple[list[int], list[bytes | None], Iterator[bytes]]:
    """Return the content of the sample as lines or bytes.

    For a topic, also the number of messages per partition and the keys of the messages.
    """
    if not sample.startswith(TOPIC):
        return [], [], _chunks(sample)
    from odf_cli.embedded.node_file import client_settings_for
    from odf_common.adapters.kafka.topic_messages import first_messages
    from odf_common.service.connections import kafka_cluster
    from odf_common.service.settings import load

    topic = sample.removeprefix(TOPIC)
    parts = first_messages(kafka_cluster(client_settings_for(load(), node)), topic, SAMPLED_MESSAGES)
    if not parts:
        raise NotFound(what=f"message in topic {topic}")
    # A newline in JSON is a space: inside a string it would be escaped.
    lines = (message.value.replace(b"\n", b" ") + b"\n" for part in parts for message in part)
    return [len(part) for part in parts], [message.key for part in parts for message in part], lines


def _chunks(file: str) -> Iterator[bytes]:
    try:
        with Path(file).open("rb") as source:
            while chunk := source.read(CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise InvalidInput(where=file, text=f"cannot be read: {error.strerror}") from error


def _write(file: Path, text: str) -> None:
    try:
        with file.open("x") as sink:
            sink.write(text)
        durable.share(file, durable.READABLE)
    except FileExistsError as error:
        raise AlreadyExists(what=f"file {file}") from error
