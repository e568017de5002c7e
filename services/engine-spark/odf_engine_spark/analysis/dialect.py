"""Extensions of Spark's SQL: temporal joins, allowed lateness, and windows as changelogs.

`JOIN prices FOR SYSTEM_TIME AS OF t.event_time AS p` is replaced by the name of a view before Spark parses the SQL. It
is padded, so that positions in error messages stay the same. `/*+ LATE('2 days') */` and `/*+ CHANGES */` are hints,
which Spark ignores.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from odf_common.errors import InvalidQuery, nearest
from odf_common.metadata.events import TemporalTable
from odf_engine_spark.analysis.columns import AsOf
from odf_engine_spark.analysis.intervals import interval_of
from odf_engine_spark.spark.error_messages import TOO_DEEP
from odf_engine_spark.spark.listed_functions import names_in
from odf_engine_spark.spark.query_limits import QueryLimits
from odf_engine_spark.spark.tree import Tree

_NAME: Final = r"(?:`[^`]+`|[A-Za-z_]\w*)"
# Each alternative ends at the end of the text if nothing else ends it: looked for again at each quote, that would take
# time with the square of the length.
_STRING: Final = r"'[^'\\]*(?:\\.[^'\\]*)*(?:'|\\?\Z)|\"[^\"\\]*(?:\\.[^\"\\]*)*(?:\"|\\?\Z)"
_LINE_COMMENT: Final = r"--(?:\\\n|[^\r\n])*"
_COMMENT: Final = r"/\*(?!\+).*?(?:\*/|\Z)"
_RAW: Final = r"(?<!\w)[rR](?:'[^']*(?:'|\Z)|\"[^\"]*(?:\"|\Z))"
_AS_OF: Final = re.compile(
    rf"{_RAW}|{_STRING}|{_LINE_COMMENT}|{_COMMENT}|"
    rf"(?<!\w)(?P<table>{_NAME})(?P<gap>\s+)FOR\s+SYSTEM_TIME\s+AS\s+OF\s+(?P<time>{_NAME}(?:\.{_NAME})?)"
    r"(?P<more>\s*[('\"])?"
    rf"(?P<alias>\s+(?:AS\s+)?(?!(?:ON|USING|WHERE|JOIN|LEFT|INNER|GROUP|UNION|HAVING)\b){_NAME})?|"
    r"`[^`]*(?:`|\Z)",  # another name, which may have quotes in it
    re.IGNORECASE | re.DOTALL,
)
_LATE: Final = "LATE"
_CHANGES: Final = "CHANGES"
# Words after which an expression begins, or a name: an END there is a column, or the name of a window.
_BEFORE_OPERANDS: Final = names_in(
    "ALL AND ANY BETWEEN CASE COLLATE DISTINCT DIV ELSE ESCAPE EXISTS FROM ILIKE IN INTERVAL IS LIKE NOT OR OVER "
    "REGEXP RLIKE SOME THEN WHEN"
)
_OPERAND_END: Final = re.compile(r"[\w`'\")\]]")  # the last sign of a word, number, string, call, subscript
_LONGEST_WORD: Final = 8  # of those here: DISTINCT
_SHORTER: Final = "put the values into a dataset, and join it"
_MAX_PARENTHESES: Final = 1000
_MAX_CASES: Final = 8
_TOKEN: Final = re.compile(
    rf"(?P<line>{_LINE_COMMENT})|(?P<comment>{_COMMENT})|`[^`]*(?:`|\Z)|"
    r"(?P<raw>[rR](?:'[^']*(?:'|\Z)|\"[^\"]*(?:\"|\Z)))|(?P<word>[A-Za-z_]\w*)|\d\w*|"
    rf"(?P<text>{_STRING})|\S",
    re.DOTALL,
)
_TIMES: Final = ("DATE", "TIME", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ")
_FIXED: Final = re.compile(r"\s*(?:[+-]?\d|epoch\s*$)", re.IGNORECASE)
_TIME_OF_DAY: Final = re.compile(r"\s*\d*:")
_CALENDAR_UNIT: Final = re.compile(r"\b(month|year)s?\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Text:
    """SQL that Spark's parser accepts, and the tables of its temporal joins by view name."""

    sql: str
    tables: Mapping[str, AsOf]


def read_text(sql: str, temporal: Sequence[TemporalTable]) -> Text:
    """Return a query with the temporal joins replaced; `temporal` declares the primary keys of tables."""
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


def check_steps(queries: Sequence[str], limits: QueryLimits) -> None:
    """Raise `InvalidQuery` if a transform has too many steps, or if they are too long together."""
    if len(queries) > limits.steps:
        raise InvalidQuery(
            text=f"the transform has {len(queries):,} steps, more than {limits.steps:,}: split it into datasets"
        )
    _check_length(sum(map(len, queries)), limits)


def check_text(sql: str, limits: QueryLimits) -> None:
    """Raise `InvalidQuery` if parsing would take too long, because of long text, long lists or deep nesting.

    Spark's parser takes a minute for thousands of parentheses, and its JSON doubles with each CASE within a CASE.
    """
    _check_length(len(sql), limits)
    tokens = list(islice(_TOKEN.finditer(sql), limits.tokens + 1))
    if any(token.lastgroup == "comment" and token[0].count("/*") > 1 for token in tokens):
        # Spark's comments nest: what is a comment for us might be a query for it.
        raise InvalidQuery(text="comments cannot be nested: remove the inner one")
    if len(tokens) > limits.tokens:
        raise InvalidQuery(text=f"the query has more than {limits.tokens:,} words and signs: {_SHORTER}")
    texts = [token[0] for token in tokens if token.lastgroup not in ("line", "comment")]
    words = [text if len(text) > _LONGEST_WORD else text.upper() for text in texts]
    _check_lists(words, limits)
    _check_nesting(words)


def _check_nesting(words: Sequence[str]) -> None:
    cases, before = [0], ""  # the open CASEs of each open parenthesis
    for word in words:
        if before == ".":  # a column's name
            pass
        elif word == "(":
            cases.append(0)
            if len(cases) > _MAX_PARENTHESES + 1:
                raise InvalidQuery(text=f"{TOO_DEEP}: more than {_MAX_PARENTHESES} nested (")
        elif word == ")" and len(cases) > 1:
            cases.pop()
        elif word == "CASE":
            cases[-1] += 1
            if sum(cases) > _MAX_CASES:
                raise InvalidQuery(text=f"{TOO_DEEP}: more than {_MAX_CASES} nested CASE")
        elif word == "END" and cases[-1] and _ends_operand(before):
            cases[-1] -= 1
        before = word


def _ends_operand(word: str) -> bool:
    """Return whether an expression can end with a word. Otherwise an END after it is the name of a column."""
    return word not in _BEFORE_OPERANDS and _OPERAND_END.match(word[-1]) is not None


def _check_lists(words: Sequence[str], limits: QueryLimits) -> None:
    """Raise `InvalidQuery` for long lists in parentheses, except the columns of a sub-query."""
    items, before = [-math.inf], ""  # of each open parenthesis
    for word in words:
        if word == "(":
            items.append(1)
        elif before == "(" and word == "SELECT":
            items[-1] = -math.inf
        elif word == ")" and len(items) > 1:
            items.pop()
        elif word == ",":
            items[-1] += 1
            if items[-1] > limits.list_items:
                raise InvalidQuery(text=f"the query lists more than {limits.list_items:,} values: {_SHORTER}")
        before = word


def _check_length(characters: int, limits: QueryLimits) -> None:
    if characters > limits.text_characters:
        raise InvalidQuery(
            text=f"the query has {characters:,} characters, more than {limits.text_characters:,}: {_SHORTER}"
        )


def check_moments(sql: str) -> None:
    """Raise `InvalidQuery` for typed literals without a fixed value, such as `TIMESTAMP 'now'`.

    Spark's parser replaces them by the current time, so they cannot be found in the plan.
    """
    before = ""
    for token in _TOKEN.finditer(sql):
        match token.lastgroup:
            case "line" | "comment":
                continue
            case "word":
                before = token[0].upper()
            case "raw" | "text" if before in _TIMES:
                check_moment(token[0].lstrip("rR")[1:-1], is_time_of_day=before == "TIME")
            case _:
                before = ""


def check_windows(tree: Tree) -> None:
    """Raise `InvalidQuery` if windows leave gaps or have no fixed length; Spark's own messages do not help."""
    for node in tree.walk():
        if node.kind == "UnresolvedFunction" and str(node.fields["nameParts"]).lower() == "[window]":
            texts = [str(child.fields["value"]) for child in node.children[1:3] if child.kind == "Literal"]
            for text in texts:
                _check_length_is_fixed(text)
            lengths = [length for length_text in texts if (length := interval_of(length_text)) is not None]
            if len(lengths) == 2 and lengths[1] > lengths[0]:
                raise InvalidQuery(
                    text=f"window(…, '{texts[0]}', '{texts[1]}') leaves gaps: its slide is longer than its length"
                )


def _check_length_is_fixed(text: str) -> None:
    """Raise `InvalidQuery` for a window of calendar units, with an alternative, which Spark's message lacks."""
    unit = _CALENDAR_UNIT.search(text)
    if unit is not None:
        raise InvalidQuery(
            text=f"window(…, '{text}'): a {unit[1].lower()} has no fixed length; "
            f"write GROUP BY date_trunc('{unit[1].lower()}', <event time>)"
        )


def check_moment(text: str, *, is_time_of_day: bool = False) -> None:
    """Raise `InvalidQuery` unless a string for a date or timestamp has a fixed value.

    Spark reads a timestamp without a date as one of today. `is_time_of_day`: the string is for a TIME, which has none.
    """
    if not _FIXED.match(text) or (_TIME_OF_DAY.match(text) and not is_time_of_day):
        raise InvalidQuery(
            text=f"'{text}' is not a fixed date or time: the query would not give the same result again"
        )


def check_hints(tree: Tree) -> None:
    """Raise `InvalidQuery` for an unknown hint, because Spark would ignore a misspelt one."""
    for node in tree.walk():
        name = str(node.fields["name"]) if node.kind == "UnresolvedHint" else _LATE
        if name.upper() not in (_CHANGES, _LATE):
            meant = nearest(name.upper(), (_CHANGES, _LATE))
            near = f"did you mean {meant}? " if meant else ""
            raise InvalidQuery(
                text=f"there is no hint {name}; {near}a query may have /*+ CHANGES */ or /*+ LATE('2 days') */"
            )


def lateness(tree: Tree) -> int | None:
    """Return the duration, in microseconds, for which late records still correct a window (hint LATE), or None."""
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


def emits_changes(tree: Tree) -> bool:
    """Return whether the hint CHANGES is set: groups by time are emitted with each change, not once complete."""
    hints = [node for node in tree.walk() if node.kind == "UnresolvedHint"]
    own = [hint for hint in hints if str(hint.fields["name"]).upper() == _CHANGES]
    if any(hint.part("parameters") for hint in own):
        raise InvalidQuery(text="the hint CHANGES takes no parameters: write /*+ CHANGES */")
    return bool(own)
