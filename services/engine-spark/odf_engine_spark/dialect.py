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
from odf_engine_spark.columns import AsOf
from odf_engine_spark.intervals import interval_of
from odf_engine_spark.tree import Tree

_NAME: Final = r"(?:`[^`]+`|[A-Za-z_]\w*)"
_AS_OF: Final = re.compile(
    r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|--[^\n]*|/\*.*?\*/|"
    rf"(?P<table>{_NAME})(?P<gap>\s+)FOR\s+SYSTEM_TIME\s+AS\s+OF\s+(?P<time>{_NAME}(?:\.{_NAME})?)"
    r"(?P<call>\s*\()?"
    rf"(?P<alias>\s+(?:AS\s+)?(?!(?:ON|USING|WHERE|JOIN|LEFT|INNER|GROUP|UNION|HAVING)\b){_NAME})?",
    re.IGNORECASE | re.DOTALL,
)
_LATE: Final = "LATE"
_MOMENT: Final = re.compile(
    r"--[^\n]*|/\*.*?\*/|`[^`]*`|(?P<word>[A-Za-z_]\w*)|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|\S",
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
        if found["call"]:
            raise InvalidQuery(
                text=f"FOR SYSTEM_TIME AS OF {time}(…): take a column; compute it in a step before"
            )
        bare = table.strip("`")
        name = f"{bare}@{time.replace('`', '')}"
        view = name.lower()
        tables[view] = AsOf(table=bare, time=time, view=view, key=keys.get(bare.lower(), ()))
        alias = found["alias"] or f" AS {table}"
        return f"`{name}`{alias}".ljust(len(found[0]))

    return Text(_AS_OF.sub(replaced, sql), tables)


def check_moments(sql: str) -> None:
    """Return if all moments written in a query are fixed; raises `InvalidQuery` for such as `TIMESTAMP 'now'`.

    Spark's parser puts the present time in their place, which a plan does not show any more.
    """
    before = ""
    for found in _MOMENT.finditer(sql):
        word, text = found["word"], found["text"]
        if text is not None and before in _TIMES:
            check_moment(text[1:-1])
        if word is not None and word.upper() != "R":  # R'…' is a text too
            before = word.upper()
        elif not found[0].startswith(("--", "/*")):
            before = before if word is not None else ""


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
