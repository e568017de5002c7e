"""SQL extensions beyond Spark: temporal joins and allowed lateness.

`JOIN prices FOR SYSTEM_TIME AS OF t.event_time AS p` is replaced by the name of a view before Spark parses the SQL,
padded so that positions in error messages stay right. `/*+ LATE('2 days') */` is a hint, which Spark ignores.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from odf_common.errors import InvalidQuery
from odf_common.metadata.steps import TemporalTable
from odf_engine_spark.analysis.columns import AsOf
from odf_engine_spark.analysis.intervals import interval_of
from odf_engine_spark.spark.error_messages import TOO_DEEP
from odf_engine_spark.spark.tree import Tree

_NAME: Final = r"(?:`[^`]+`|[A-Za-z_]\w*)"
_AS_OF: Final = re.compile(
    r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|--(?:\\\n|[^\r\n])*|/\*(?!\+).*?\*/|"
    rf"(?P<table>{_NAME})(?P<gap>\s+)FOR\s+SYSTEM_TIME\s+AS\s+OF\s+(?P<time>{_NAME}(?:\.{_NAME})?)"
    r"(?P<more>\s*[('\"])?"
    rf"(?P<alias>\s+(?:AS\s+)?(?!(?:ON|USING|WHERE|JOIN|LEFT|INNER|GROUP|UNION|HAVING)\b){_NAME})?",
    re.IGNORECASE | re.DOTALL,
)
_LATE: Final = "LATE"
_CLOSED: Final = {")": "(", "END": "CASE"}  # by the closing token
_MAX_NESTING: Final = {"(": 1000, "CASE": 8}
_TOKEN: Final = re.compile(
    r"(?P<line>--(?:\\\n|[^\r\n])*)|(?P<comment>/\*(?!\+).*?\*/)|`[^`]*`|(?P<raw>[rR](?:'[^']*'|\"[^\"]*\"))|(?P<word>[A-Za-z_]\w*)|"
    r"(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|\S",
    re.DOTALL,
)
_TIMES: Final = ("DATE", "TIME", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ")
_FIXED: Final = re.compile(r"\s*(?:[+-]?\d|epoch\s*$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Text:
    """SQL for Spark's parser, and the tables of its temporal joins by their view names."""

    sql: str
    tables: Mapping[str, AsOf]


def read_text(sql: str, temporal: Sequence[TemporalTable]) -> Text:
    """Return a query with our extensions replaced. `temporal` declares primary keys of tables."""
    keys = {table.name.lower(): tuple(table.primary_key) for table in temporal}
    tables: dict[str, AsOf] = {}

    def replaced(match: re.Match[str]) -> str:
        table, time = match["table"], match["time"]
        if table is None:
            return match[0]
        if match["more"]:
            raise InvalidQuery(
                text=f"FOR SYSTEM_TIME AS OF {time}{match['more'].strip()}…: use a column of the other side of the "
                "JOIN; compute it in an earlier step"
            )
        bare = table.strip("`")
        name = f"{bare}@{time.replace('`', '')}"
        view = name.lower()
        tables[view] = AsOf(table=bare, time=time, view=view, key=keys.get(bare.lower(), ()))
        alias = match["alias"] or f" AS {table}"
        return f"`{name}`{alias}".ljust(len(match[0]))

    return Text(_AS_OF.sub(replaced, sql), tables)


def check_depth(sql: str) -> None:
    """Raise `InvalidQuery` if expressions are nested so deeply that parsing would take too long.

    Spark's parser takes a minute for thousands of parentheses, and its JSON doubles with each CASE inside a CASE.
    """
    deep, before = dict.fromkeys(_MAX_NESTING, 0), ""
    for token in _TOKEN.finditer(sql):
        word = token[0].upper()
        if before == ".":  # a column's name
            pass
        elif word in _CLOSED:
            deep[_CLOSED[word]] = max(deep[_CLOSED[word]] - 1, 0)
        elif word in deep:
            deep[word] += 1
            if deep[word] > _MAX_NESTING[word]:
                raise InvalidQuery(text=f"{TOO_DEEP}: more than {_MAX_NESTING[word]} nested {word}")
        before = word


def check_moments(sql: str) -> None:
    """Raise `InvalidQuery` for typed literals without a fixed value, such as `TIMESTAMP 'now'`.

    Spark's parser replaces them by the current time, and the plan no longer shows that.
    """
    before = ""
    for token in _TOKEN.finditer(sql):
        match token.lastgroup:
            case "line":
                continue
            case "comment":
                if token[0].count("/*") > 1:
                    raise InvalidQuery(text="comments cannot be nested: remove the inner one")
            case "word":
                before = token[0].upper()
            case "raw" | "text" if before in _TIMES:
                check_moment(token[0].lstrip("rR")[1:-1])
            case _:
                before = ""


def check_windows(tree: Tree) -> None:
    """Raise `InvalidQuery` if windows leave gaps; Spark's own message for that does not help."""
    for node in tree.walk():
        if node.kind == "UnresolvedFunction" and str(node.fields["nameParts"]).lower() == "[window]":
            texts = [str(child.fields["value"]) for child in node.children[1:3] if child.kind == "Literal"]
            lengths = [length for length_text in texts if (length := interval_of(length_text)) is not None]
            if len(lengths) == 2 and lengths[1] > lengths[0]:
                raise InvalidQuery(
                    text=f"window(…, '{texts[0]}', '{texts[1]}') leaves gaps: its slide is longer than its length"
                )


def check_moment(text: str) -> None:
    """Raise `InvalidQuery` unless a string that becomes a date or timestamp is a fixed one."""
    if not _FIXED.match(text):
        raise InvalidQuery(
            text=f"'{text}' is not a fixed date or time: the query would not give the same result again"
        )


def lateness(tree: Tree) -> int | None:
    """Return for how long after a window's end late records still correct it (the hint LATE); microseconds."""
    for node in tree.walk():
        if node.kind == "UnresolvedHint" and str(node.fields["name"]).upper() == _LATE:
            values = [str(parameter.fields.get("value")) for parameter in node.part("parameters")]
            bound = interval_of(values[0]) if len(values) == 1 else None
            if bound is None or bound <= 0:
                raise InvalidQuery(
                    text="the hint LATE takes a single interval, such as /*+ LATE('2 days') */"
                )
            return bound
    return None
