"""No command prints what nobody sees: each is answered by services whose every text has such characters, or refuses.

The commands are those that the program has, so a new one needs a line here. What needs no service, or is a node's own,
is listed with the reason.
"""

import io
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import click
import pyarrow as pa
import pytest
import yaml
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp
from odf_testing.builders import a_chain, a_dataset, a_seed
from odf_testing.fake_services import fake_service
from rich.console import Console

from odf_cli import clients
from odf_cli import main as cli
from odf_cli.output import progress
from odf_common.adapters.grpc.client import RemoteRefused
from odf_common.codec.flatbuffers import encode_event
from odf_common.codec.visible_text import is_visible
from odf_common.metadata.events import SetInfo
from odf_common.proto.odf.node.v1 import (
    access_pb2,
    coordinator_pb2,
    ingest_pb2,
    resources_pb2,
    sync_pb2,
    verifier_pb2,
    webhooks_pb2,
)

HIDDEN: Final = "a\u202eb\u2066\u200b\u200d\x1b[31m\x9b\xad\ufeff\u2028\U000e0041\u3164z"
SERVICES: Final = {
    "coordinator": coordinator_pb2,
    "ingest": ingest_pb2,
    "verifier": verifier_pb2,
    "sync": sync_pb2,
    "access": access_pb2,
    "resources": resources_pb2,
    "flows": resources_pb2,
    "webhooks": webhooks_pb2,
}
CHAIN: Final = a_chain(a_seed(), SetInfo(description=HIDDEN, keywords=(HIDDEN,)))
TABLE: Final = pa.table({HIDDEN: [HIDDEN], "nested": [[{HIDDEN: HIDDEN}]], "op": pa.array([0], pa.uint8())})
COMMANDS: Final = {
    "status": ("", "a"),
    "add": ("{manifest}",),
    "commit": ("a {event}",),
    "new": ("a --from {sample}",),
    "list": ("", "--wide"),
    "log": ("a", "a --signatures"),
    "tail": ("a",),
    "inspect block": ("a {block}",),
    "inspect lineage": ("a",),
    "inspect query": ("a",),
    "inspect schema": ("a",),
    "inspect sources": ("a",),
    "rename": ("a b",),
    "delete": ("a --yes",),
    "reset": ("a {block} --yes",),
    "ref delete": ("a@b",),
    "ref fast-forward": ("a@b",),
    "ref list": ("a",),
    "ref set": ("a@b {block}",),
    "compare": ("a b",),
    "ingest": ("a {sample}", "a"),
    "rejected drop": ("a --all",),
    "rejected list": ("a",),
    "rejected retry": ("a --all",),
    "rejected show": ("a 0/1",),
    "source resume": ("a",),
    "source set": ("a watermarkDelay=1m",),
    "source show": ("a",),
    "source skip": ("a",),
    "pull": ("a", "http://127.0.0.1:1/a --as b", "--all"),
    "push": ("a --to http://127.0.0.1:1/a",),
    "search": ("a",),
    "alias add": ("a --pull http://127.0.0.1:1/a",),
    "alias delete": ("a --pull http://127.0.0.1:1/a",),
    "alias list": ("",),
    "webhook add": ("a http://127.0.0.1:1/a",),
    "webhook delete": ("a",),
    "webhook list": ("",),
    "login": ("http://127.0.0.1:1",),
    "logout": ("http://127.0.0.1:1",),
    "account add": ("a --no-password",),
    "account list": ("",),
    "account password": ("a --no-password",),
    "account remove": ("a",),
    "token create": ("a",),
    "token list": ("",),
    "token revoke": ("a",),
    "access grant": ("a b reader",),
    "access revoke": ("a b",),
    "access set": ("a --visibility public",),
    "access show": ("a",),
    "verify": ("a", "--all"),
    "sql": ("x",),
    "system drop-data": ("a --yes",),
    "engine upgrade": ("a --yes",),
    "block decode": ("{encoded}",),
    "apply": ("-f {resource}", "-f {resource} --dry-run", "-f {resource} --wait"),
    "diff": ("-f {resource}",),
    "get": ("a", "a b", "--all", "a --watch"),
    "history": ("a:b",),
    "reconcile": ("a:b",),
    "types add": ("{resource}",),
    "secret rotate": ("",),
    "flow run": ("a",),
    "flow runs": ("a",),
}
ON_A_TERMINAL: Final = {"rejected show"}  # a pipe gets the message's bytes as they were sent
ANSWERS_WITHOUT_TEXT: Final = {
    "inspect schema",
    "reconcile",
    "ref delete",
    "rejected drop",
    "webhook delete",
    "token revoke",
}
WITHOUT_TEXT_OF_OTHERS: Final = {
    "up", "down", "doctor", "system backup", "system restore", "config", "topics",  # of this machine, its settings and its parts
    "completion", "schema", "parse-ref", "hash logical", "hash physical", "block encode", "secret encrypt", "explain",  # of the arguments
    "repo add", "repo delete", "repo list", "key export", "key import", "prove", "convert",  # of files that the user has made
    "logs",  # tested with its files
}  # fmt: skip


def leaves(command: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from leaves(below, f"{path} {name}".strip())


LEAVES: Final = dict(leaves(cli.odf))


def test_every_command_is_listed() -> None:
    assert {*COMMANDS} | WITHOUT_TEXT_OF_OTHERS == {*LEAVES}


def answer(kind: Descriptor) -> Message:
    """Return a message whose every field has a value; hashes, ids and contents are valid, all other text is not seen."""
    message = GetMessageClass(kind)()
    if isinstance(message, Timestamp):
        message.FromSeconds(0)
        return message
    for field in kind.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            entries = getattr(message, field.name)
            key = HIDDEN if field.message_type.fields[0].type == FieldDescriptor.TYPE_STRING else 1
            if field.message_type.fields[1].message_type is None:
                entries[key] = scalar(field.message_type.fields[1])
            else:
                entries[key].CopyFrom(answer(field.message_type.fields[1].message_type))
        elif field.message_type is not None:
            value = answer(field.message_type)
            if field.is_repeated:
                getattr(message, field.name).append(value)
            else:
                getattr(message, field.name).CopyFrom(value)
        elif field.is_repeated:
            getattr(message, field.name).append(scalar(field))
        else:
            setattr(message, field.name, scalar(field))
    return message


def scalar(field: FieldDescriptor) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        return VALID.get(field.name, HIDDEN)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return CONTENTS.get(field.full_name.removeprefix("odf.node.v1."), HIDDEN.encode())
    return field.type == FieldDescriptor.TYPE_BOOL or 1


def ipc(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


BLOCK: Final = str(CHAIN.state.head)
RESOURCE: Final = {
    "$schema": HIDDEN,
    "headers": {
        "name": HIDDEN,
        "account": {"name": HIDDEN},
        "generation": 1,
        "createdAt": "2026-01-01T00:00:00Z",
    },
    "spec": {HIDDEN: HIDDEN},
    "status": {
        "phase": "Failed",
        "observedGeneration": 1,
        "conditions": {HIDDEN: {"code": HIDDEN, "message": HIDDEN}},
    },
}
WARNING: Final = {"path": HIDDEN, "code": HIDDEN, "message": HIDDEN}
OUTCOME: Final = {
    **dict.fromkeys(("type", "id", "name", "account", "outcome", "etag"), HIDDEN),
    "generation": 1,
    "warnings": [WARNING],
    "rebound": [HIDDEN],
    "diff": [{"path": HIDDEN, "before": HIDDEN, "after": {HIDDEN: HIDDEN}}],
}
RUN: Final = {
    **dict.fromkeys(("trigger", "state"), HIDDEN),
    **dict.fromkeys(("requestedAt", "startedAt", "finishedAt"), "2026-01-01T00:00:00Z"),
    "run": 1,
    "target": {"name": HIDDEN},
    "tasks": [{"message": HIDDEN}],
}
PROBLEM: Final = {"document": 1, "file": HIDDEN, "line": 1, "hint": HIDDEN, **WARNING}
VALID: Final = {
    **dict.fromkeys(("hash", "head", "block", "common"), BLOCK),
    "dataset_id": str(a_dataset()),
    "kind": "Root",
    "location": "0/1",
    "next_cursor": "",  # the last page
}
CONTENTS: Final[dict[str, bytes]] = {
    "BlockItem.content": CHAIN.blocks[-1].raw,
    "BlockItem.signature": b"x",
    "LastEventReply.event": encode_event(CHAIN.blocks[-1].block.event),
    "ArrowBytes.ipc": ipc(TABLE),
    **dict.fromkeys(
        (
            "ResourceReply.json",
            "ResourceReply.input",
            "ListResourcesReply.resources",
            "ResourceEventMessage.json",
            "ResourceEventMessage.payload",
        ),
        json.dumps(RESOURCE).encode(),
    ),
    "ResourceReply.dependents": b"[]",
    "FlowRunsReply.runs": json.dumps(RUN).encode(),
    "ApplyResourcesReply.results": json.dumps([OUTCOME]).encode(),
    "ApplyResourcesReply.problems": json.dumps([PROBLEM]).encode(),
    "SampleReply.schema": TABLE.schema.serialize().to_pybytes(),
}


def replies(method: MethodDescriptor) -> Any:
    """Return what a call answers; each part of a oneof is a message of its own."""
    kind = method.output_type
    if method.name == "ApplyResources":
        return applied(kind)
    if not method.server_streaming:
        return answer(kind)
    whole = answer(kind)
    if "state" in kind.fields_by_name:  # of a copy
        others = [answer(kind), answer(kind)]
        others[0].state, others[1].state = "replacing", "updated"  # type: ignore[attr-defined]
        return iter((whole, *others))
    parts = [field.name for one in kind.oneofs for field in one.fields if len(one.fields) > 1]
    messages = []
    for name in parts:
        messages.append(GetMessageClass(kind)())
        getattr(messages[-1], name).CopyFrom(answer(getattr(messages[-1], name).DESCRIPTOR))
    return iter(messages or (whole,))


def applied(kind: Descriptor) -> Any:
    """Return the results of a batch, or by turns its problems: a reply has never both."""
    message = answer(kind)
    message.ClearField("results" if next(TURNS) % 2 else "problems")
    return message


TURNS: Final = itertools.count()


@pytest.fixture(params=["answered", "refused"])
def node(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """Have all services answer or refuse with what nobody sees; return the values of arguments."""

    def call(method: MethodDescriptor) -> Callable[..., Any]:
        def called(_: object, **__: object) -> Any:
            if request.param == "refused":
                raise RemoteRefused(text=HIDDEN, name=HIDDEN, hint=HIDDEN)
            return replies(method)

        called.future = lambda *_, **__: SimpleNamespace(result=lambda *_, **__: called(None), cancel=bool)  # type: ignore[attr-defined]
        return called

    for name, module in SERVICES.items():
        methods = [one for service in module.DESCRIPTOR.services_by_name.values() for one in service.methods]
        fake_service(monkeypatch, name, **{one.name: call(one) for one in methods})
        monkeypatch.setenv(f"ODF_{name.upper()}_GRPC", "127.0.0.1:1")
    monkeypatch.setattr(clients, "live_view", lambda *_: [])
    monkeypatch.setenv("ODF_HOME", str(tmp_path / "home"))
    files = {
        "manifest": b"kind: DatasetSnapshot\nversion: 1\ncontent:\n  name: a\n  kind: Root\n  metadata: []\n",
        "event": b"kind: SetInfo\ndescription: a\n",
        "resource": b"{}",
        "sample": b"a\n1\n",
        "encoded": CHAIN.blocks[-1].raw,
    }
    arguments = {"block": BLOCK, "mode": request.param}
    for name, content in files.items():
        file = tmp_path / (name + (".csv" if name == "sample" else ".yaml"))
        file.write_bytes(content)
        arguments[name] = str(file)
    return arguments


@pytest.mark.parametrize("command", COMMANDS)
def test_what_nobody_sees_is_escaped_in_all_that_a_command_prints(
    node: dict[str, str], command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if command in ON_A_TERMINAL:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("NO_COLOR", "1")
    has_output = any(one.name == "output" for one in LEAVES[command].params)
    shown = ""
    for arguments in COMMANDS[command]:
        for output in ("table", "json", "yaml") if has_output else ("",):
            words = [*command.split(), *arguments.format(**node).split()]
            code = cli.main([*words, *(("-o", output) if output else ())])
            captured = capsys.readouterr()
            assert code != 2, captured.err
            assert is_visible(captured.out + captured.err), output
            shown += captured.out + captured.err
            if output == "json":
                json.loads(captured.out or "null")
            if output == "yaml":
                [*yaml.safe_load_all(captured.out)]
    is_silent = node["mode"] == "answered" and command in ANSWERS_WITHOUT_TEXT
    assert is_silent or command == "status" or "\\u202e" in shown


def test_progress_bars_show_no_hidden_characters() -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=200)
    with progress(terminal) as bars:
        bars.add_task(HIDDEN + "[red]", total=1)
    shown = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert "\\u202e" in shown
    assert "[red]" in shown, "what looks like a markup is none"
    assert not {*HIDDEN} & {*shown} - {*"abz[31m\x1b"}


def test_what_click_says_of_arguments_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([HIDDEN], ["list", f"--{HIDDEN}"], ["log", "a", "--limit", HIDDEN], ["list", "-o", HIDDEN]):
        assert cli.main(words) == 2
        said = capsys.readouterr().err
        assert is_visible(said)
        assert "\\u202e" in said
