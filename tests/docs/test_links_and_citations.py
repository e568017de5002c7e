"""The targets of links in documents and of citations in code exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from odf_verifier.targets import Damage

ROOT = Path(__file__).parents[2]
WIRE_FACTS = (ROOT / "docs" / "spec" / "wire-facts.md").read_text("utf-8")
SECTIONS = set(re.findall(r"^#{2,3} ([\d.]+) ", WIRE_FACTS, re.MULTILINE))
RULES = set(
    re.findall(r"^\| (\d+) \|", WIRE_FACTS.partition("### 5.5 ")[2].partition("\n## ")[0], re.MULTILINE)
)
LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)")
CITED = re.compile(r"§(\d+(?:\.\d+)*)(?:–(\d+(?:\.\d+)*))?")
CITED_RULES = re.compile(r"§5\.5,? (?:rule )?(\d+)(?:–(\d+))?(?: and (\d+))?")


def ours(*patterns: str) -> list[Path]:
    """Return files of the repository, except installed, generated and hidden ones."""
    tops = [top for top in ROOT.iterdir() if top.is_dir() and not top.name.startswith(".")]
    found = {file for pattern in patterns for top in (ROOT, *tops) for file in list_files(top, pattern)}
    return sorted(found)


def list_files(top: Path, pattern: str) -> Iterator[Path]:
    listed = top.glob(pattern) if top == ROOT else top.rglob(pattern)
    for file in listed:
        if not {"site", "findings", "build"} & set(file.relative_to(ROOT).parts):
            yield file


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings as GitHub and mkdocs generate them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", ours("*.md"), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_has_a_target(page: Path) -> None:
    broken = []
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in LINK.findall(text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        if not found.exists() or (anchor and anchor not in anchors(found)):
            broken.append(target)
    assert broken == []


def test_every_cited_section_of_the_wire_facts_exists() -> None:
    missing = set()
    for file in ours("*.py", "*.proto", "*.fbs", "*.toml"):
        for line in file.read_text("utf-8").splitlines():
            if "§" in line and file != Path(__file__):
                missing |= {
                    f"{file.relative_to(ROOT)}: §{name}"
                    for found in CITED.findall(line)
                    for name in found
                    if name and name not in SECTIONS
                }
    assert missing == set()


def test_every_cited_rule_exists() -> None:
    assert {str(number) for number in range(1, 23)} == RULES
    cited = [found for file in ours("*.py") for found in CITED_RULES.findall(file.read_text("utf-8"))]
    assert cited
    assert {number for found in cited for number in found if number} <= RULES


def test_every_document_that_the_code_names_exists() -> None:
    named = {
        name
        for file in ours("*.py", "*.toml", "*.in", "Makefile")
        for name in re.findall(r"\bdocs/[\w/.-]+\.md\b", file.read_text("utf-8"))
    }
    assert named
    assert {name for name in named if not (ROOT / name).exists()} == set()


def test_every_kind_of_damage_is_explained() -> None:
    guide = (ROOT / "docs" / "guide" / "verify.md").read_text("utf-8")
    assert [kind.value for kind in Damage if f"`{kind.value}`" not in guide] == []


def test_a_backup_leaves_out_only_what_is_created_or_sent_again() -> None:
    layout = (ROOT / "docs" / "formats" / "store-layout.md").read_text("utf-8").partition("## The node")[2]
    rows = [line.strip("| ").split(" | ") for line in layout.splitlines() if line.startswith("| `")]
    # What Kafka has is said in the guide.
    harmless = re.compile("(created|fetched|sent|read) again|^Kafka")
    is_harmless = {
        name.partition("/")[0]: harmless.search(loss) is not None
        for names, _, loss in rows
        for name in re.findall(r"`([^`]+)`", names)
    }
    rule = (ROOT / "docs" / "operations.md").read_text("utf-8").partition("Back up `$ODF_HOME` without ")[2]
    left_out = re.findall(r"`([\w-]+)/`", rule.partition(";")[0])
    assert {"kafka", "cache"} < set(left_out)
    assert [name for name in left_out if not is_harmless[name]] == []
    assert not any(is_harmless[name] for name in ("keys", "accepted", "tenancy", "node-id"))
