"""Suggestions: the nearest name of a command or kind, and settings for late records.

Imports nothing slow, as `odf --help` needs it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from odf_common.errors import nearest

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from odf_common.proto.odf.node.v1.ingest_pb2 import FutureRecords, LateRecords


SYNONYMS: Final = {
    "cat": "tail",
    "clone": "pull",
    "create": "add",
    "export": "odf push DATASET --to file:///FOLDER, or odf sql QUERY --output json",
    "import": "odf pull URL, or odf ingest DATASET FILE",
    "ls": "list",
    "query": "sql",
    "rm": "delete",
    "select": "sql",
    "start": "up",
    "stop": "down",
}
"""Commands of other tools, and the commands of `odf` that do the same."""


class CommandGroup(click.Group):
    """A group that suggests the nearest command in its error for an unknown one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the name, the command and its arguments; an unknown command is a usage error."""
        name = args[0]
        if not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            near = SYNONYMS.get(name) if ctx.parent is None else None
            near = near or nearest(name, self.list_commands(ctx))
            if near is not None:
                ctx.fail(f"No such command {name!r}. Did you mean {near}?")
        return super().resolve_command(ctx, args)


class NameChoice(click.ParamType):
    """A parameter with one of many values, case-insensitive. The help shows the parameter's name, not its values."""

    name = "name"

    def __init__(self, what: str, names: Sequence[str], *, hint: str = "") -> None:
        """Accept `names`; `what` says in errors what one of them is, with its article.

        `hint` says where to find them, if they are too many for an error.
        """
        self._what, self._hint = what, hint
        self._names = {name.lower(): name for name in names}

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name in its usual spelling; any other value is a usage error."""
        if value.lower() not in self._names:
            near = nearest(value, self._names.values())
            choices = self._hint or f"choose from {', '.join(self._names.values())}"
            hint = f"did you mean {near}?" if near else choices
            self.fail(f"{value!r} is not {self._what}; {hint}", param, ctx)
        return self._names[value.lower()]

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        """Return the names that begin with `incomplete`."""
        from click.shell_completion import CompletionItem

        return [
            CompletionItem(name) for key, name in self._names.items() if key.startswith(incomplete.lower())
        ]


def future_remark(future: "FutureRecords", dataset: str, source: str) -> str:
    """Return a remark on the records too far in the future to raise the watermark, with the remedy.

    `source` is the name of the source; it may be empty if the dataset has only one.
    """
    of_source = f" --source {source}" if source else ""
    return (
        f"records later than now by more than maxFuture, which do not raise the watermark: {future.records}, "
        f"the first at offset {future.offset} with {future.time}; if such times are meant, "
        f"`odf source set {dataset} maxFuture=none{of_source}` lets the next ones raise it"
    )


def late_remark(late: "LateRecords", dataset: str, source: str) -> str:
    """Return a remark on late records, with the setting that avoids further ones.

    `source` is the name of the source; it may be empty if the dataset has only one.
    """
    remark = (
        f"records that arrived after the watermark had passed them: {late.records}, by up to {late.most}; "
    )
    if not late.proposed_delay:
        return f"{remark}the watermark is in the future: `odf status {dataset}` says how to lower it"
    command = f"odf source set {dataset} watermarkDelay={late.proposed_delay}"
    if not source:
        return f"{remark}`{command}` holds the watermark back"
    others = "set it for the dataset's other sources too, since each of them raises the watermark of all"
    return f"{remark}`{command} --source {source}` holds the watermark back; {others}"
