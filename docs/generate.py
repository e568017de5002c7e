"""Write generated pages of docs/reference from code and results: `make docs`; `pages` names them.

Commands and settings are imported. Metrics and error classes are read from the source: importing every service would
start Spark's and Faust's modules. A test holds that the files are current.
"""

import ast
import importlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from odf_cli.exit_codes import ExitCode
from odf_cli.main import odf
from odf_common.service.settings import describe_variables
from odf_engine_spark.spark.listed_functions import (
    AD_HOC_ONLY,
    IN_TRANSFORMS,
    OPTIONS,
    REFUSED,
    classes_by_function,
)
from odf_engine_spark.values.spark_types import RESULT_TYPES
from odf_ingest.read.types.conversions import TABLE
from odf_ingest.read.types.kinds import DECLARED, FORMATS, ValueKind

ROOT: Final = Path(__file__).parents[1]
REFERENCE: Final = ROOT / "docs" / "reference"
RESULTS: Final = ROOT / "benchmarks" / "results.json"
PACKAGES: Final[Mapping[str, str]] = {
    "libs/odf_common/odf_common": "every",
    "libs/odf_cli/odf_cli": "every",
    "services/ingest/odf_ingest": "ingest",
    "services/coordinator/odf_coordinator": "coordinator",
    "services/engine-spark/odf_engine_spark": "engine-spark",
    "services/verifier/odf_verifier": "verifier",
    "services/sync/odf_sync": "sync",
}
sys.path.append(str(ROOT / "benchmarks"))
sys.path.append(str(ROOT / "docs"))
code_shape: Final = importlib.import_module("code_shape")
resource_reference: Final = importlib.import_module("resource_reference")
NOTICE: Final = "<!-- Generated from the code by `make docs`; do not edit. -->\n"
WIDTH: Final = 100  # characters of help texts
ROOT_ERROR: Final = "OdfError"
METRICS: Final = ("Counter", "Gauge", "Histogram", "Summary")

CLI_INTRO: Final = """\
Results go to standard output, everything else to standard error. `--output json` exists wherever there is a result; a
pipe gets the full width of tables.
"""
SETTINGS_INTRO: Final = """\
Environment variables, read once when a process starts; all errors are reported together. `odf config` prints them with
their values, secrets masked. Addresses that are not set are chosen by `odf up`.
"""
MEASUREMENTS_NOTICE: Final = "<!-- Generated from benchmarks/results.json by `make docs`; do not edit. -->\n"
MEASUREMENTS_INTRO: Final = """\
What the benchmarks last measured, each number next to its limit or peer from the same run. A ratio is better when
larger for rates, and when smaller for times, costs and sizes. Machines differ and are shared: with more than a few
other processes running, only ratios are meaningful. What a case does, and what its peer does less, is described at the
top of `benchmarks/CASE.py`. Where that code has changed since, other than in its
names, the section says so.
"""
PARTS: Final = ("ingest", "coordinator", "engine-spark", "verifier", "sync", "views", "kafka", "redis")
PARTS_INTRO: Final = """\
The largest peak of each part of a node in the cases below: resident memory of its processes, in MB. A part keeps much
of its peak for its later work, so a case's number may come from an earlier case. [Sizing](../operations.md#sizing) says
on what they depend.
"""
NOT_IN_TRANSFORMS: Final = """\
The result of a transform has to be the same whenever it is computed again. A `preprocess`, which
[computes each record alone](../guide/ingest.md#compute-each-record), calls none of these but `collate`, and
neither aggregates nor functions of OVER.
"""
FUNCTIONS_INTRO: Final = """\
What SQL may call in `transform`, `preprocess` and `odf sql`. A function that is in no table does not exist for the
engine, so one of a new release of Spark stays closed until someone has read what it does. Spark's documentation says
what each computes.
"""
OPTIONS_INTRO: Final = """\
Functions of JSON, CSV and XML take options in a last argument `map('name', 'value')`; names and values are strings, not
computed.
"""
CONVERSIONS_INTRO: Final = """\
Which value of a file or message becomes which value of a column, the same on every way in. A value arrives exactly, or
its message or row is not a record of the source: the reason names row, column, value and type, and what to write
instead. Fields of structs and elements of lists follow the same table. Null is null in every type.

A time with a finer fraction than its column is cut towards the past, also before 1970; with `finerTimes=refuse`
(`odf source set`) it is refused. `TIMESTAMP(p)` and `TIME(p)` count 0, 3, 6 or 9 digits of a second: other numbers are
raised to the next of these. Times are in the years 0001 to 9999 in UTC, and of `TIMESTAMP(9)` in 1677 to 2262.

What `preprocess` returns has [its own types](#results-of-queries), and is not converted: a column of another type than
the dataset's is refused, and only its times are cut to the dataset's unit, as above. Avro and Protobuf messages become
JSON first, of which times, decimals and UUIDs are strings.
"""
RELEASES_INTRO: Final = """\
`python benchmarks/compare_releases.py OLD_CHECKOUT --write`: both releases on one machine, in turns. A
ratio above 1 is slower. The interval has the true median of the ratios in it with the probability in brackets.
"""
RESULTS_INTRO: Final = """\
What derivatives and `preprocess` store of a query's result. A column keeps the type of its first record: a query that
returns another one is refused, with the column. Inside a query all times have microseconds: finer ones of an input are
cut towards the past, also before 1970, and `finerTimes` does not apply. A time of another year ends the request with
column, value, and the input's record where the query computes each record alone.
"""
ERRORS_INTRO: Final = """\
An error's name is its `code` in JSON and over gRPC. The family decides the gRPC status and what a caller may do.
A `Signal` never leaves its process, but may be the reason why a source waits.
"""


def pages() -> dict[str, str]:
    """Return each generated page by its file name."""
    trees = tuple(_trees())
    return {
        "cli.md": _cli(),
        "settings.md": _settings(),
        "metrics.md": _metrics(trees),
        "errors.md": _errors(trees),
        "functions.md": _functions(),
        "conversions.md": _conversions(),
        "resources.md": "\n".join((NOTICE, *resource_reference.resource_page())),
        "measurements.md": _measurements(json.loads(RESULTS.read_text("utf-8"))),
    }


# --- commands -----------------------------------------------------------------------------------------------------


def _cli() -> str:
    parts = [
        NOTICE,
        "# Commands\n",
        CLI_INTRO,
        _table(
            ("exit status", "meaning"),
            [(str(int(code)), code.meaning) for code in ExitCode],
        ),
    ]
    parts += [f"{heading}\n\n```text\n{text}\n```\n" for heading, text in _help(odf, None)]
    return "\n".join(parts)


def _help(command: click.Command, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    """Iterate over a command and its subcommands: heading, help text."""
    context = click.Context(
        command,
        parent=parent,
        info_name=command.name if parent else "odf",
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        help_option_names=["-h", "--help"],
    )
    path = context.command_path
    command._help_option = None  # noqa: SLF001 - click keeps that of the first context, whose names may differ
    yield f"##{'#' * (path.count(' ') > 1)} {path}", command.get_help(context).rstrip()
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None, name
            yield from _help(child, context)


# --- settings -----------------------------------------------------------------------------------------------------


def _settings() -> str:
    rows = [
        (f"`{name}`", f"`{default}`" if default else "", about)
        for name, default, about in describe_variables()
    ]
    return "\n".join(
        [
            NOTICE,
            "# Settings\n",
            SETTINGS_INTRO,
            _table(("variable", "default", "meaning"), rows),
        ]
    )


# --- metrics ------------------------------------------------------------------------------------------------------


def _metrics(trees: Iterable["Module"]) -> str:
    rows = sorted(row for module in trees for row in _metrics_of(module))
    return "\n".join(
        [
            NOTICE,
            "# Metrics\n",
            "Each service serves Prometheus metrics at its `metrics` address (`odf status`, `ODF_METRICS_PORT`).\n",
            _table(("metric", "type", "labels", "service", "meaning"), rows),
        ]
    )


def _metrics_of(module: "Module") -> Iterator[tuple[str, ...]]:
    for node in module.nodes:
        if not isinstance(node, ast.Call) or (kind := _name(node.func)) not in METRICS or len(node.args) < 2:
            continue
        name, about, *labels = (ast.literal_eval(argument) for argument in node.args[:3])
        shown = ", ".join(f"`{label}`" for label in (labels[0] if labels else ()))
        yield f"`{name}`", kind.lower(), shown, module.service, about


# --- errors -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorClass:
    """An error as the source declares it."""

    name: str
    bases: tuple[str, ...]
    about: str
    service: str


def _errors(trees: Iterable["Module"]) -> str:
    classes = {class_.name: class_ for module in trees for class_ in _error_classes(module)}
    errors = {name: class_ for name, class_ in classes.items() if ROOT_ERROR in _ancestors(name, classes)}
    rows = [
        (f"`{name}`", _bases(errors[name]), errors[name].service, errors[name].about)
        for name in sorted(errors)
        if not name.startswith("_") and name != ROOT_ERROR
    ]
    return "\n".join(
        [
            NOTICE,
            "# Errors\n",
            ERRORS_INTRO,
            _table(
                ("family", "gRPC status", "exit status", "what a caller may do"),
                [
                    ("`InvalidInput`", "`INVALID_ARGUMENT`", "1", "correct the input"),
                    ("`NotFound`", "`NOT_FOUND`", "1", "name something that exists"),
                    ("`AlreadyExists`", "`ALREADY_EXISTS`", "1", "choose another name"),
                    ("`Conflict`", "`ABORTED`", "1", "read again and repeat"),
                    (
                        "`ChainRuleViolated`, `Refused`",
                        "`FAILED_PRECONDITION`",
                        "1",
                        "do first what the message says",
                    ),
                    ("`VerificationFailed`", "`DATA_LOSS`", "3", "restore what is damaged"),
                    ("`Busy`", "`RESOURCE_EXHAUSTED`", "1", "repeat later"),
                    ("`Unavailable`", "`UNAVAILABLE`", "1", "repeat later; services retry automatically"),
                    ("`InternalError`", "`INTERNAL`", "1", "report it"),
                ],
            ),
            _table(("error", "derived from", "service", "meaning"), rows),
        ]
    )


def _error_classes(module: "Module") -> Iterator[ErrorClass]:
    for node in module.nodes:
        if isinstance(node, ast.ClassDef) and node.bases:
            about = (ast.get_docstring(node) or "").partition("\n\n")[0].replace("\n", " ")
            bases = tuple(map(_name, node.bases))
            yield ErrorClass(name=node.name, bases=bases, about=about.strip(), service=module.service)


def _bases(error: ErrorClass) -> str:
    return ", ".join(f"`{base}`" for base in error.bases)


def _ancestors(name: str, classes: Mapping[str, ErrorClass]) -> set[str]:
    ancestors, waiting = set[str](), [name]
    while waiting:
        name = waiting.pop()
        if name not in ancestors and name in classes:
            waiting += classes[name].bases
        ancestors.add(name)
    return ancestors


# --- functions ----------------------------------------------------------------------------------------------------


def _functions() -> str:
    restricted = ("functions", "why", "instead")
    rows = [(topic, _names(text)) for topic, text in IN_TRANSFORMS.items()]
    options = [
        (f"`{name}`", ", ".join(f"`{option}`" for option in sorted(names))) for name, names in OPTIONS.items()
    ]
    return "\n".join(
        [
            NOTICE,
            "# Functions of SQL\n",
            FUNCTIONS_INTRO,
            "## In all queries\n",
            _table(("topic", "functions"), rows),
            "## Not in transforms\n",
            NOT_IN_TRANSFORMS,
            _table(restricted, [(_names(it.functions), it.why, it.instead) for it in AD_HOC_ONLY]),
            "## Refused\n",
            _table(restricted, [(_names(it.functions), it.why, it.instead) for it in REFUSED]),
            "## Options\n",
            OPTIONS_INTRO,
            _table(("function", "options"), options),
        ]
    )


def _names(functions: str) -> str:
    return " ".join(f"`{name}`" for name in classes_by_function(functions))


# --- conversions --------------------------------------------------------------------------------------------------


def _conversions() -> str:
    formats = [
        (f"`{name}`" if " " not in name else name, ", ".join(kinds)) for name, kinds in FORMATS.items()
    ]
    parts = [
        NOTICE,
        "# Values\n",
        CONVERSIONS_INTRO,
        "## Values of formats\n",
        "Text may be anything; a JSON string is no number.\n",
        _table(("format", "kinds of values"), formats),
    ]
    for declared, names in DECLARED.items():
        parts += [f"## {names}\n", _table(("value", "accepted as", "otherwise"), _rules_of(declared))]
    results = [(rule.sql, rule.becomes or "refused", rule.instead) for rule in RESULT_TYPES]
    parts += [
        "## Results of queries\n",
        RESULTS_INTRO,
        _table(("type in SQL", "stored as", "otherwise"), results),
    ]
    return "\n".join(parts)


def _rules_of(declared: ValueKind) -> Iterator[tuple[str, ...]]:
    """Iterate over the rules of a declared type: kinds that are accepted, then the others."""
    rules = [(source, TABLE[source, declared]) for source in ValueKind]
    for source, rule in sorted(rules, key=lambda pair: not pair[1].accepts):
        yield source.value, rule.accepts or "refused", rule.instead


# --- measurements -------------------------------------------------------------------------------------------------


def _measurements(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    cases = results["cases"]
    sections = [_case(name, case) for name, case in cases.items() if not case.get("failed")]
    peaks = [(part, _number(peak), case) for part, (peak, case) in part_peaks(cases).items()]
    parts = ["## Memory of a node's parts\n", PARTS_INTRO, _table(("part", "MB", "case"), peaks)]
    releases = _releases(results.get("releases", {}))
    return "\n".join(
        [MEASUREMENTS_NOTICE, "# Measurements\n", MEASUREMENTS_INTRO, *parts, *releases, *sections]
    )


def _releases(measured: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the section that compares this release with an older one; nothing if they were not compared."""
    if not measured:
        return
    header = (
        "case",
        "old ms",
        "new ms",
        "new / old",
        "interval of the median",
        "pairs",
        "old",
        "new",
        "date",
    )
    rows = [
        (
            name,
            f"{numbers['old_ms']:,.1f}",
            f"{numbers['new_ms']:,.1f}",
            f"{numbers['ratio']:.3f}",
            f"{numbers['low']:.3f} to {numbers['high']:.3f} ({numbers['probability']:.1%})",
            str(numbers["pairs"]),
            numbers["old_commit"],
            numbers["commit"],
            numbers["date"],
        )
        for name, numbers in measured.items()
    ]
    yield from ("## Compared with an older release\n", RELEASES_INTRO, _table(header, rows))


def part_peaks(cases: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[float, str]]:
    """Return the largest peak of each part of a node in MB, and the case that it was measured in."""
    measured = [(case.get("memory_mb", {}), name) for name, case in cases.items()]
    return {
        part: max((peaks[part], name) for peaks, name in measured if part in peaks)
        for part in PARTS
        if any(part in peaks for peaks, _ in measured)
    }


def _case(name: str, case: Mapping[str, Any]) -> str:
    """Return a section: the command, where and when it ran, the rows, and each process's peak memory."""
    where = [case["date"], f"commit {case['commit']}" if "commit" in case else "an older commit"]
    where += [f"{case['cores']} cores of {case['processor']}", case["java"], f"Python {case['python']}"]
    where += [f"{case['waiting']:g} other processes running"]
    since = changed_since(case)
    note = [f"Changed since then: {', '.join(f'`{file}`' for file in since)}.\n"] if since else []
    rows = [
        (
            row["case"],
            f"{_number(row['value'])} {row['unit']}",
            row["peer"] or "",
            _number(row["limit_or_peer"]),
            _number(row["ratio"]),
            row["target"] or "",
            {True: "yes", False: "no", None: ""}[row["reached"]],
            ", ".join(f"{part}: {_number(value)}" for part, value in row.get("detail", {}).items()),
        )
        for row in case["rows"]
    ]
    header = ("case", "value", "compared with", "its value", "ratio", "target", "reached", "in detail")
    parts = [
        f"## {name}\n",
        f"`python benchmarks/run.py --only {name}`: {', '.join(where)}.\n",
        *note,
        _table(header, rows),
    ]
    if memory := case.get("memory_mb"):
        peaks = ", ".join(f"{process} {_number(peak)} MB" for process, peak in memory.items())
        parts.append(f"Peak memory: {peaks}.\n")
    return "\n".join(parts)


def changed_since(case: Mapping[str, Any]) -> list[str]:
    """Return which modules of a benchmark do not do what they did when it ran; other names are no change."""
    return [
        name
        for name, digest in case.get("code", {}).items()
        if not (file := ROOT / "benchmarks" / name).exists() or code_shape.shape_of(file) != digest
    ]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


# --- shared -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A source file, and the service that it belongs to."""

    service: str
    nodes: tuple[ast.AST, ...]  # breadth first


def _trees() -> Iterator[Module]:
    for folder, service in PACKAGES.items():
        for file in sorted((ROOT / folder).rglob("*.py")):
            if "testing" not in file.relative_to(ROOT).as_posix() and "/proto/" not in file.as_posix():
                yield Module(service=service, nodes=tuple(ast.walk(ast.parse(file.read_text("utf-8")))))


def _name(node: ast.expr) -> str:
    """Return the last part of a dotted name, an empty string for other expressions."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    cells = (" | ".join(cell.replace("|", "\\|") for cell in line) for line in lines)
    return "".join(f"| {line} |\n" for line in cells)


if __name__ == "__main__":
    REFERENCE.mkdir(exist_ok=True)
    for page, text in pages().items():
        (REFERENCE / page).write_text(text, "utf-8")
