import re

import pytest
from hypothesis import given
from hypothesis import strategies as some

from odf_common.errors import InvalidInput
from odf_common.hashing import multibase
from odf_common.identity.dataset_refs import (
    Alias,
    AmbiguousAlias,
    DatasetId,
    DatasetRefAny,
    Name,
    NothingCovered,
    RemoteAlias,
    RemoteId,
    Url,
    is_pattern,
    matching_names,
    parse_alias,
    parse_pattern,
    parse_ref,
    parse_ref_any,
    parse_ref_remote,
    parse_remote_alias,
)

ID = DatasetId.parse("did:odf:fed012e6fcce36701dc791488e0d0b1745cc1e33a4c1c9fcc41c63bd343dbbe0970e6")
NAMES = ["a", "A1", "net.example.com", "my-data.set-2", "10m", "ny-newyork", "admin0.countries.10m"]
NOT_NAMES = [
    "",
    "-a",
    "a-",
    "a--b",
    ".a",
    "a.",
    "a..b",
    "a.-b",
    "a_b",
    "a b",
    "é",
    "a:b",
    "foo:bar",
    "a\n",
    "a%",
]


def name(text: str) -> Name:
    return Name(text)


@pytest.mark.parametrize("text", NAMES)
def test_names_of_the_grammar_are_names(text: str) -> None:
    assert parse_alias(text) == Alias(dataset=name(text))
    assert parse_alias(f"kamu/{text}") == Alias(account=name("kamu"), dataset=name(text))
    assert str(parse_alias(f"{text}/{text}")) == f"{text}/{text}"


@pytest.mark.parametrize("text", NOT_NAMES)
def test_other_strings_are_no_names_anywhere(text: str) -> None:
    for whole in (text, f"a/{text}", f"{text}/a", f"a/b/{text}"):
        for parse in (parse_alias, parse_ref, parse_ref_remote, parse_ref_any):
            with pytest.raises(InvalidInput, match="is not a reference"):
                parse(whole)


def test_names_ignore_case_and_keep_it() -> None:
    assert name("NY-NewYork") == name("ny-newyork")
    assert len({name("A"), name("a")}) == 1
    assert sorted([name("b"), name("A"), name("C")]) == [name("a"), name("b"), name("c")]
    assert str(name("NY-NewYork")) == "NY-NewYork"
    assert parse_alias("A/B") == parse_alias("a/b")
    assert parse_alias("A/B").key == "a/b"
    assert name("a") != "a"


def test_local_reference_is_an_id_or_an_alias() -> None:
    assert parse_ref(str(ID)) == ID
    assert parse_ref("a/b") == Alias(account=name("a"), dataset=name("b"))
    with pytest.raises(InvalidInput, match="a/b/c"):
        parse_ref("a/b/c")
    with pytest.raises(InvalidInput, match=r"https://example\.com/x"):
        parse_ref("https://example.com/x")


def test_remote_reference_is_an_id_an_alias_or_a_url() -> None:
    assert parse_ref_remote(str(ID)) == RemoteId(id=ID)
    assert parse_ref_remote(f"repo/{ID}") == RemoteId(repo=name("repo"), id=ID)
    assert parse_ref_remote("repo/b") == RemoteAlias(repo=name("repo"), dataset=name("b"))
    assert parse_ref_remote("repo/a/b") == RemoteAlias(
        repo=name("repo"), account=name("a"), dataset=name("b")
    )
    assert parse_ref_remote("odf+https://example.com/x y") == Url("odf+https://example.com/x y")
    with pytest.raises(InvalidInput, match=r"expected repository/my\.dataset"):
        parse_ref_remote("dataset")


def test_any_reference_follows_the_order_of_the_grammar() -> None:
    assert parse_ref_any(str(ID)) == ID
    assert parse_ref_any(f"repo/{ID}") == RemoteId(repo=name("repo"), id=ID)
    assert parse_ref_any("b") == Alias(dataset=name("b"))
    assert parse_ref_any("a/b") == AmbiguousAlias(first=name("a"), dataset=name("b"))
    assert parse_ref_any("r/a/b") == RemoteAlias(repo=name("r"), account=name("a"), dataset=name("b"))
    assert parse_ref_any("s3+http://host:9000/bucket/") == Url("s3+http://host:9000/bucket/")
    with pytest.raises(InvalidInput, match="a/b/c/d"):
        parse_ref_any("a/b/c/d")


def test_ambiguous_alias_is_resolved_by_the_known_repositories() -> None:
    alias = AmbiguousAlias(first=name("Repo"), dataset=name("b"))
    assert alias.settle([name("repo")]) == RemoteAlias(repo=name("repo"), dataset=name("b"))
    assert alias.settle([]) == Alias(account=name("repo"), dataset=name("b"))


@pytest.mark.parametrize(
    "text", ["did:odf:", "did:odf:zzz", "did:odf:f00", "did:key:z6Mk", "DID:ODF:fed01", "a/did:odf:x"]
)
def test_broken_ids_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"is not a reference|multibase|not an ed25519 dataset id"):
        parse_ref_any(text)


@pytest.mark.parametrize("text", ["://x", "a_b://x", "http://", "http:/x", "+a://x", "http://a\nb"])
def test_broken_urls_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="expected a dataset's name, its id"):
        parse_ref_any(text)


@given(some.binary(min_size=32, max_size=32), some.sampled_from(multibase.FINAL))
def test_ids_are_read_in_every_final_encoding(key: bytes, encoding: str) -> None:
    expected = DatasetId.of_key(key)
    assert parse_ref("did:odf:" + multibase.encode(expected.raw, encoding)) == expected


@pytest.mark.parametrize(
    ("pattern", "alias", "expected"),
    [
        ("%", "anything", True),
        ("net.%", "Net.example", True),
        ("net.%", "network", False),
        ("%.a%", "x.ab", True),
        ("a.b", "aXb", False),
        ("kamu/%", "kamu/x", True),
        ("kamu/%", "other/x", False),
        ("KAMU/X", "kamu/x", True),
        ("%", "a", True),
        ("a%", "a", True),
        ("a%a", "a", False),
        ("a%b%a", "aba", True),
        ("%b%b%", "abc", False),
    ],
)
def test_pattern_matches_whole_names(pattern: str, alias: str, *, expected: bool) -> None:
    assert parse_pattern(pattern).matches(parse_alias(alias)) is expected


def test_a_pattern_of_many_parts_is_matched_quickly() -> None:
    assert not parse_pattern("%a" * 1000).matches(parse_alias("a" * 2000 + "b"))


@given(some.text("ab%", min_size=1, max_size=8), some.text("ab", min_size=1, max_size=8))
def test_a_pattern_matches_like_a_regular_expression(pattern: str, text: str) -> None:
    expected = re.fullmatch(pattern.replace("%", ".*"), text) is not None
    assert parse_pattern(pattern).matches(parse_alias(text)) is expected


@pytest.mark.parametrize(
    "text",
    ["", "a b", "a/", "%/a", "a/b/c", "a_%", "a..%", "-%", ".%.", "%.", "%-.%", "%--a", "did:odf:%", "a%@b"],
)
def test_broken_patterns_and_those_that_no_name_can_match_are_refused(text: str) -> None:
    with pytest.raises(
        InvalidInput, match=r"is not a (reference; expected a name in which % matches anything|name)"
    ):
        parse_pattern(text)


@given(some.text("ab.-%", min_size=1, max_size=6))
def test_a_pattern_is_accepted_if_some_name_can_match_it(text: str) -> None:
    # If any name is, then one in which every % is a letter, or nothing where that leaves a name.
    try:
        pattern = parse_pattern(text)
    except InvalidInput:
        assert not is_name(text.replace("%", "x"))
    else:
        assert pattern.matches(parse_alias(text.replace("%", "x")))


def is_name(text: str) -> bool:
    try:
        parse_alias(text)
    except InvalidInput:
        return False
    return True


def test_patterns_are_distinguished_from_urls() -> None:
    assert [text for text in ("a.%", "a", "https://x/%20", "file:///a%20b", "%") if is_pattern(text)] == [
        "a.%",
        "%",
    ]


def test_matches_of_patterns_are_listed_once_and_in_order() -> None:
    names = ("flights", "Flights.Late", "weather", "me/flights.hourly")
    assert matching_names(["flights.%", "%late"], names) == ("Flights.Late", "me/flights.hourly")
    with pytest.raises(NothingCovered, match=r"no dataset has a name that matches trains\.%"):
        matching_names(["flights.%", "trains.%"], names)


SOME_NAMES = some.from_regex(r"[a-zA-Z0-9]{1,3}(?:[.-][a-zA-Z0-9]{1,3}){0,2}", fullmatch=True)
IDS = some.binary(min_size=32, max_size=32).map(lambda key: str(DatasetId.of_key(key)))
URLS = some.from_regex(r"[a-z0-9]+(?:\+[a-z0-9]+)?://[^\n]+", fullmatch=True)
ALIASES = some.lists(SOME_NAMES, min_size=1, max_size=3).map("/".join)
REMOTE_IDS = some.tuples(SOME_NAMES, IDS).map("/".join)


@given(ALIASES | IDS | REMOTE_IDS | URLS | some.text(max_size=20))
def test_a_printed_reference_is_read_back(text: str) -> None:
    for parse in (parse_alias, parse_remote_alias, parse_ref, parse_ref_remote, parse_ref_any):
        try:
            ref = parse(text)
        except InvalidInput:
            continue
        assert parse(str(ref)) == ref


@given(ALIASES)
def test_every_name_is_read_by_the_number_of_its_parts(text: str) -> None:
    names = [Name(part) for part in text.split("/")]
    expected: DatasetRefAny
    if len(names) == 1:
        expected = Alias(dataset=names[0])
    elif len(names) == 2:
        expected = AmbiguousAlias(first=names[0], dataset=names[1])
    else:
        expected = RemoteAlias(repo=names[0], account=names[1], dataset=names[2])
    assert parse_ref_any(text) == expected


@given(IDS, SOME_NAMES)
def test_every_id_is_read_with_its_repository(text: str, repo: str) -> None:
    id_ = DatasetId.parse(text)
    assert parse_ref_any(text) == id_
    assert parse_ref_any(f"{repo}/{text}") == RemoteId(repo=Name(repo), id=id_)


@given(URLS)
def test_every_url_is_read_unchanged(text: str) -> None:
    assert parse_ref_any(text) == Url(text)
