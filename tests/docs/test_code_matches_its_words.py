"""Names in the code: those in prose exist, and each means one thing; modules are as short as CONTRIBUTING requires."""

import ast
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted([*ROOT.glob("libs/*/odf_*"), *ROOT.glob("services/*/odf_*")])
MODULES = [
    file for package in PACKAGES for file in sorted(package.rglob("*.py")) if "proto" not in file.parts
]
QUOTED = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)`(?!`)")
MODULE = re.compile(r"(?<!`)`([a-z_]+)`(?!`)")
WORD = re.compile(r"[A-Za-z_]\w*")
NUMBER = re.compile(r"[\d.()*+<\s]+")
# Names of other systems: errno, the FlatBuffers schema, Python, Spark and Java.
FOREIGN = {
    *("EIO", "ESTALE", "MetadataEventWrapper", "preexec_fn"),
    *("ParseException", "TreeNode.toJSON", "Double.equals"),
}
# What the docstring of a package quotes that is not a module of it: commands, libraries, parameters, routes.
NOT_MODULES = {
    "odf",
    "command",
    "confluent_kafka",
    "flatbuffers",
    "flock",
    "metadata",
    "schema",
    "pull",
    "push",
}
# Calls that log, and the names of facts that have another one.
LOGGERS = {"log", "source.log", "structlog.contextvars"}
LOG_CALLS = {"debug", "info", "warning", "error", "exception", "bound_contextvars"}
OTHER_FACTS = {"reason": "why", "cause": "why", "error": "code", "id": "dataset_id"}
# Constants that a module has for itself, and calls as its neighbours call theirs.
OWN_CONSTANTS = {
    *("COLUMNS", "EXTRA"),  # of a command's table
    *("DATABASE", "FILE", "FOLDER", "LOCK", "NOTE", "TABLES"),  # where a module stores things
    *("HEADERS", "NAME", "WHERE"),  # of a module's answers, gRPC service and errors
}
MAX_MODULE_LINES = 500
MAX_BODY_LINES = 40
MAX_PAGE_LINES = {"README.md": 90, "ARCHITECTURE.md": 100}


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


@cache
def nodes_of(file: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree_of(file)))


@cache
def tokens_of(file: Path) -> tuple[tokenize.TokenInfo, ...]:
    """Return names, strings and comments."""
    with tokenize.open(file) as source:
        tokens = tokenize.generate_tokens(source.readline)
        return tuple(
            token for token in tokens if token.type in (tokenize.NAME, tokenize.STRING, tokenize.COMMENT)
        )


def prose_of(file: Path) -> Iterator[ast.Constant]:
    """Yield docstrings, of fields too."""
    for node in nodes_of(file):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


@cache
def words() -> frozenset[str]:
    """Return all words of the code itself: names, strings and paths, but neither docstrings nor comments."""
    found: set[str] = set()
    for file in MODULES:
        found |= {*file.relative_to(ROOT).with_suffix("").parts}
        prose = {(node.lineno, node.col_offset) for node in prose_of(file)}
        for token in tokens_of(file):
            if token.type != tokenize.COMMENT and token.start not in prose:
                found |= set(WORD.findall(token.string))
    camel = {re.sub(r"_([a-z])", lambda letter: letter[1].upper(), word) for word in found}
    variables = {f"ODF_{word.upper()}" for word in found}
    return frozenset(found | camel | variables)


@cache
def members() -> dict[str, set[str]]:
    """Return what the bodies of classes without bases define; classes of one name count as one."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    derived = set()
    for file in MODULES:
        for node in nodes_of(file):
            if isinstance(node, ast.ClassDef):
                found[node.name] |= {
                    name.attr
                    if isinstance(name, ast.Attribute)
                    else getattr(name, "name", getattr(name, "id", ""))
                    for name in ast.walk(node)
                    if isinstance(name, ast.FunctionDef | ast.Name | ast.Attribute)
                }
                if node.bases:
                    derived.add(node.name)
    return {name: defined for name, defined in found.items() if name not in derived}


def quoted(file: Path) -> Iterator[str]:
    for node in prose_of(file):
        yield from QUOTED.findall(str(node.value))
    for token in tokens_of(file):
        if token.type == tokenize.COMMENT:
            yield from QUOTED.findall(token.string)


def exists(name: str) -> bool:
    first, _, rest = name.partition(".")
    if rest and first in members():
        return rest.partition(".")[0] in members()[first]
    return name in FOREIGN or set(WORD.findall(name.removesuffix(".py"))) <= words()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_names_in_docstrings_and_comments_exist(package: Path) -> None:
    files = [file for file in MODULES if file.is_relative_to(package)]
    gone = [
        (str(file.relative_to(ROOT)), name) for file in files for name in quoted(file) if not exists(name)
    ]
    assert gone == []


def test_a_removed_name_would_be_found() -> None:
    assert exists("Committer.lock")
    assert not exists("Committer.exclusively")
    assert not exists("grpc_client.calling")


def strange_modules(docstring: str, defined: Collection[str]) -> list[str]:
    """Return the quoted names of modules that are neither children of a package nor defined in it."""
    return [name for name in MODULE.findall(docstring) if name not in {*defined, *NOT_MODULES}]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_modules_in_the_docstring_of_a_package_are_its_own(package: Path) -> None:
    strange = {}
    for file in (file for file in MODULES if file.is_relative_to(package) and file.stem == "__init__"):
        own = {path.stem for path in file.parent.iterdir()}
        own |= {node.name for node in nodes_of(file) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        if found := strange_modules(ast.get_docstring(tree_of(file)) or "", own):
            strange[str(file.relative_to(ROOT))] = found
    assert strange == {}


def test_a_renamed_module_would_be_found() -> None:
    assert strange_modules("`rules` decides, `store` stores; see `Store` and `odf`.", {"rules"}) == ["store"]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_no_two_modules_or_rooms_of_a_package_have_the_same_name(package: Path) -> None:
    names = Counter(
        file.parent.name if file.stem == "__init__" else file.stem
        for file in MODULES
        if file.is_relative_to(package) and file.stem != "__main__"
    )
    assert {name for name, count in names.items() if count > 1} == set()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_no_two_modules_of_a_package_have_a_public_class_of_one_name(package: Path) -> None:
    names = Counter(
        node.name
        for file in MODULES
        if file.is_relative_to(package)
        for node in tree_of(file).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


def hints(file: Path) -> Iterator[str]:
    """Yield the advice of errors; {} stands for what is only known when it runs."""
    for node in nodes_of(file):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ADVICE":
            yield str(ast.literal_eval(node.value))
        if isinstance(node, ast.FunctionDef) and node.name == "advice":
            for part in ast.walk(node):
                if isinstance(part, ast.Return) and isinstance(part.value, ast.Constant | ast.JoinedStr):
                    pieces = part.value.values if isinstance(part.value, ast.JoinedStr) else [part.value]
                    yield "".join(str(one.value) if isinstance(one, ast.Constant) else "{}" for one in pieces)


def test_hints_are_fragments() -> None:
    all_hints = [hint for file in MODULES for hint in hints(file)]
    assert len(all_hints) > 100
    assert [hint for hint in all_hints if re.match(r"[A-Z][a-z]", hint) or hint.endswith(".")] == []


def constants_of(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the public constants of a module, and their values: numbers are evaluated, so that 1 << 20 is 1024 * 1024."""
    for node in tree_of(file).body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                text = ast.unparse(value)
                if (
                    name.isupper() and len(name) > 1 and not name.startswith("_")
                ):  # one letter: a type variable
                    yield name, str(eval(text)) if NUMBER.fullmatch(text) else text  # noqa: S307 - our own code
            case _:
                pass


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_public_constant_has_one_value_in_a_package(package: Path) -> None:
    values: defaultdict[str, set[str]] = defaultdict(set)
    for file in MODULES:
        if file.is_relative_to(package):
            for name, value in constants_of(file):
                values[name].add(value)
    assert {name: of for name, of in values.items() if len(of) > 1 and name not in OWN_CONSTANTS} == {}


def log_calls(file: Path) -> Iterator[ast.Call]:
    for node in nodes_of(file):
        match node:
            case ast.Call(func=ast.Attribute(attr=name, value=of)):
                if name in LOG_CALLS and ast.unparse(of) in LOGGERS:
                    yield node
            case _:
                pass


def facts_of_logs(file: Path) -> Iterator[dict[str, ast.expr]]:
    """Yield the facts of each call that logs, and each literal that such calls take by `**`."""
    starred = set()
    for call in log_calls(file):
        yield {fact.arg: fact.value for fact in call.keywords if fact.arg is not None}
        starred |= {ast.unparse(fact.value) for fact in call.keywords if fact.arg is None}
    for node in nodes_of(file):
        match node:
            case ast.Assign(targets=[target], value=ast.Dict(keys=keys, values=values)):
                if ast.unparse(target) in starred:
                    pairs = zip(keys, values, strict=True)
                    yield {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}
            case _:
                pass


def misnamed(facts: dict[str, ast.expr]) -> Iterator[str]:
    yield from (f"{name}: say {OTHER_FACTS[name]}" for name in facts if name in OTHER_FACTS)
    if "dataset" in facts and ast.unparse(facts["dataset"]).startswith("str("):
        yield "dataset: it is the name, dataset_id the id"
    if "dataset" in facts and "dataset_id" not in facts:
        yield "dataset: without dataset_id, which finds all lines of a dataset"


def test_one_fact_has_one_name_in_all_logs() -> None:
    found = [
        f"{file.relative_to(ROOT)}: {fault}"
        for file in MODULES
        for facts in facts_of_logs(file)
        for fault in misnamed(facts)
    ]
    assert found == []


def test_a_misnamed_fact_would_be_found() -> None:
    call = ast.parse("log.info('polled', dataset=str(dataset), reason='')", mode="eval").body
    assert isinstance(call, ast.Call)
    faults = [*misnamed({fact.arg: fact.value for fact in call.keywords if fact.arg is not None})]
    assert [fault.partition(":")[0] for fault in faults] == ["reason", "dataset", "dataset"]


def test_modules_are_short() -> None:
    lines = {str(file.relative_to(ROOT)): len(file.read_text("utf-8").splitlines()) for file in MODULES}
    assert {name: count for name, count in lines.items() if count > MAX_MODULE_LINES} == {}


@pytest.mark.parametrize("page", MAX_PAGE_LINES)
def test_the_first_pages_are_short(page: str) -> None:
    assert len((ROOT / page).read_text("utf-8").splitlines()) <= MAX_PAGE_LINES[page]


def test_functions_are_short() -> None:
    long = {}
    for file in MODULES:
        for node in nodes_of(file):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                first = node.body[min(ast.get_docstring(node) is not None, len(node.body) - 1)]
                if (count := node.end_lineno - first.lineno + 1) > MAX_BODY_LINES:
                    long[f"{file.relative_to(ROOT)}: {node.name}"] = count
    assert long == {}
