"""References to datasets, and patterns over their names."""

from odf_common.errors import OdfError
from odf_common.identity.dataset_refs import (
    Alias,
    Name,
    NamePattern,
    parse_alias,
    parse_pattern,
    parse_ref,
    parse_ref_any,
    parse_ref_remote,
    parse_remote_alias,
)

PARSERS = (parse_alias, parse_remote_alias, parse_ref, parse_ref_remote, parse_ref_any)
REPEATING = Alias(dataset=Name("a" * 60 + "-b" * 20))


def check(raw: bytes) -> None:
    """Read `raw` by every parser: printed references are read back; patterns are matched quickly."""
    text = raw.decode("utf-8", "surrogateescape")
    for parse in PARSERS:
        try:
            ref = parse(text)
        except OdfError:
            continue
        assert parse(str(ref)) == ref
    _check_pattern(text)


def _check_pattern(text: str) -> None:
    try:
        pattern = parse_pattern(text)
    except OdfError:
        return
    pattern.matches(REPEATING)
    assert NamePattern(None, "%").matches(REPEATING)
    if "%" not in text:
        assert pattern.matches(parse_alias(text))
