"""What our SQL has beyond Spark's: tables as of a time of the other side, and how long late records count.

`JOIN prices FOR SYSTEM_TIME AS OF t.event_time AS p` becomes the name of a view before Spark reads the text, padded
so that positions in messages stay right. `/*+ LATE('2 days') */` is a hint, which Spark passes by.
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
_CLOSED: Final = {")": "(", "END": "CASE"}  # by what closes it
_DEEPEST: Final = {"(": 1000, "CASE": 8}
_TOKEN: Final = re.compile(
    r"(?P<line>--(?:\\\n|[^\r\n])*)|(?P<comment>/\*(?!\+).*?\*/)|`[^`]*`|(?P<raw>[rR](?:'[^']*'|\"[^\"]*\"))|(?P<word>[A-Za-z_]\w*)|"
    r"(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|\S",
    re.DOTALL,
)
_TIMES: Final = ("DATE", "TIME", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ")
_FIXED: Final = re.compile(r"\s*(?:[+-]?\d|epoch\s*$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Text:
    """SQL that Spark reads, and the tables as of a time in it by the names that they have there."""

    sql: str
    tables: Mapping[str, AsOf]


def read_text(sql: str, temporal: Sequence[TemporalTable]) -> Text:
    """Return a query in Spark's own SQL. `temporal` declares primary keys of tables."""
    keys = {table.name.lower(): tuple(table.primary_key) for table in temporal}
    tables: dict[str, AsOf] = {}

    def replaced(found: re.Match[str]) -> str:
        table, time = found["table"], found["time"]
        if table is None:
            return found[0]
        if found["more"]:
            raise InvalidQuery(
                text=f"FOR SYSTEM_TIME AS OF {time}{found['more'].strip()}…: take a column of the other side of the "
                "JOIN; compute it in a step before"
            )
        bare = table.strip("`")
        name = f"{bare}@{time.replace('`', '')}"
        view = name.lower()
        tables[view] = AsOf(table=bare, time=time, view=view, key=keys.get(bare.lower(), ()))
        alias = found["alias"] or f" AS {table}"
        return f"`{name}`{alias}".ljust(len(found[0]))

    return Text(_AS_OF.sub(replaced, sql), tables)


def check_depth(sql: str) -> None:
    """Return if a query may be read in good time; raises `InvalidQuery` for what stands too deeply inside of others.

    Spark's parser takes a minute for some thousands of brackets, and its JSON doubles with each CASE inside of a CASE.
    """
    deep, before = dict.fromkeys(_DEEPEST, 0), ""
    for found in _TOKEN.finditer(sql):
        word = found[0].upper()
        if before == ".":  # a column
            pass
        elif word in _CLOSED:
            deep[_CLOSED[word]] = max(deep[_CLOSED[word]] - 1, 0)
        elif word in deep:
            deep[word] += 1
            if deep[word] > _DEEPEST[word]:
                raise InvalidQuery(text=f"{TOO_DEEP}: more than {_DEEPEST[word]} {word} inside of each other")
        before = word


def check_moments(sql: str) -> None:
    """Return if all moments written in a query are fixed; raises `InvalidQuery` for such as `TIMESTAMP 'now'`.

    Spark's parser puts the present time in their place, which a plan does not show any more.
    """
    before = ""
    for found in _TOKEN.finditer(sql):
        match found.lastgroup:
            case "line":
                continue
            case "comment":
                if found[0].count("/*") > 1:
                    raise InvalidQuery(text="a comment stands inside of a comment: take one of them away")
            case "word":
                before = found[0].upper()
            case "raw" | "text" if before in _TIMES:
                check_moment(found[0].lstrip("rR")[1:-1])
            case _:
                before = ""


def check_windows(tree: Tree) -> None:
    """Return if no window of a query as written begins later than the one before it ends: Spark tells it badly."""
    for node in tree.walk():
        if node.kind == "UnresolvedFunction" and str(node.fields["nameParts"]).lower() == "[window]":
            given = [str(each.fields["value"]) for each in node.children[1:3] if each.kind == "Literal"]
            lengths = [length for each in given if (length := interval_of(each)) is not None]
            if len(lengths) == 2 and lengths[1] > lengths[0]:
                raise InvalidQuery(
                    text=f"window(…, '{given[0]}', '{given[1]}') leaves gaps: it slides by more than its length"
                )


def check_moment(text: str) -> None:
    """Return if a text that becomes a moment is a fixed one."""
    if not _FIXED.match(text):
        raise InvalidQuery(
            text=f"'{text}' is no fixed moment: the query would not give the same result again"
        )


def lateness(tree: Tree) -> int | None:
    """Return how long after a window's end late records still correct it, as a query as written says; microseconds."""
    for node in tree.walk():
        if node.kind == "UnresolvedHint" and str(node.fields["name"]).upper() == _LATE:
            given = [str(each.fields.get("value")) for each in node.part("parameters")]
            bound = interval_of(given[0]) if len(given) == 1 else None
            if bound is None or bound <= 0:
                raise InvalidQuery(text="the hint LATE takes one interval, such as /*+ LATE('2 days') */")
            return bound
    return None
