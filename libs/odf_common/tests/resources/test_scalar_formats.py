import re
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as some

from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import DatasetId, Name
from odf_common.metadata.scalars import Timestamp
from odf_common.resources.scalar_formats import (
    MAX_INT64,
    MAX_UINT64,
    ByteSize,
    Did,
    Duration,
    InvalidName,
    ResourceId,
    ShortTypeName,
    TypeUri,
    parse_email,
    parse_name,
    parse_type_ref,
    parse_uint64,
    parse_uri,
)

SECOND = 1_000_000_000
KEY = "ed01" + "6f" * 32
ID = "0b9c1a52-5f0e-4d53-9a3e-6f1b2b7a9d10"
CORE = "https://opendatafabric.org/schemas"


@pytest.mark.parametrize(
    ("text", "seconds", "shown"),
    [
        ("90s", 90, "90s"),
        ("1h30m", 5400, "90m"),
        ("1h 30 m", 5400, "90m"),
        ("10min", 600, "10m"),
        ("1day 2hour 3min 4sec", 93_784, "93784s"),
        ("60s", 60, "1m"),
        ("24h", 86_400, "1d"),
        ("7d", 604_800, "1w"),
        ("1y", 31_556_926, "1y"),
        ("0s", 0, "0s"),
        ("1s1s", 2, "2s"),
    ],
)
def test_duration_sums_groups_and_prints_the_largest_exact_unit(text: str, seconds: int, shown: str) -> None:
    assert Duration.parse(text) == seconds * SECOND
    assert str(Duration.parse(text)) == shown


@pytest.mark.parametrize(("unit", "ns"), [("ns", 1), ("us", 1000), ("ms", 1_000_000), ("s", SECOND)])
def test_duration_has_units_below_a_second(unit: str, ns: int) -> None:
    assert Duration.parse(f"7{unit}") == 7 * ns
    assert str(Duration(7 * ns)) == f"7{unit}"


@pytest.mark.parametrize(
    "text", ["", " ", "10", "s", "-1s", "1.5h", "1h30", "5 parsecs", "10M", "1H", "300y", "٣s", "none"]
)
def test_duration_refuses_other_strings(text: str) -> None:
    with pytest.raises(InvalidInput, match="expected a duration such as"):
        Duration.parse(text)


@given(some.integers(0, MAX_INT64))
def test_duration_is_read_as_it_is_printed(ns: int) -> None:
    assert Duration.parse(str(Duration(ns))) == ns


@pytest.mark.parametrize(
    ("value", "size", "shown"),
    [
        ("10Gi", 10 * 2**30, "10GiB"),
        ("100MiB", 100 * 2**20, "100MiB"),
        ("10k", 10_000, "10kB"),
        ("10 KB", 10_000, "10kB"),
        (4096, 4096, "4KiB"),
        ("123", 123, "123B"),
        ("5b", 5, "5B"),
        (0, 0, "0B"),
        ("1.5kib", 1536, "1536B"),
        ("2.5m", 2_500_000, "2500kB"),
        ("1eib", 2**60, "1EiB"),
        ("3T", 3 * 10**12, "3TB"),
        ("3pb", 3 * 10**15, "3PB"),
        ("1024000", 1_024_000, "1000KiB"),
    ],
)
def test_byte_size_has_decimal_and_binary_units(value: str | int, size: int, shown: str) -> None:
    assert ByteSize.parse(value) == size
    assert str(ByteSize.parse(value)) == shown


@pytest.mark.parametrize(
    "value", ["", "k", "-1", -1, "10x", "1e3", "10 k b", True, "17eib", MAX_UINT64 + 1, "1\u212a"]
)
def test_byte_size_refuses_other_values(value: str | int) -> None:
    with pytest.raises(InvalidInput, match="expected a size in bytes such as"):
        ByteSize.parse(value)


def test_byte_size_is_a_whole_number() -> None:
    with pytest.raises(InvalidInput, match="not a whole number of bytes"):
        ByteSize.parse("0.0001k")


@given(some.integers(0, MAX_UINT64))
def test_byte_size_is_read_as_it_is_printed(size: int) -> None:
    assert ByteSize.parse(str(ByteSize(size))) == size


@pytest.mark.parametrize("value", [0, 1, 2**53, MAX_UINT64])
def test_uint64_is_a_plain_number(value: int) -> None:
    assert parse_uint64(value) == value


@pytest.mark.parametrize("text", ["9007199254740993", str(MAX_UINT64)])
def test_uint64_above_two_to_the_53_may_be_a_string(text: str) -> None:
    assert parse_uint64(text) == int(text)


@pytest.mark.parametrize(
    "value", [-1, MAX_UINT64 + 1, True, 1.0, None, "5", "9007199254740992", "18446744073709551616", "x"]
)
def test_uint64_refuses_other_values(value: object) -> None:
    with pytest.raises(InvalidInput, match="expected an integer from 0"):
        parse_uint64(value)


@given(some.uuids(version=4))
def test_resource_id_is_a_random_uuid_in_lower_case(value: uuid.UUID) -> None:
    assert ResourceId.parse(str(value).upper()) == str(value)


@pytest.mark.parametrize(
    "text",
    [
        "aa-11",
        "",
        ID.replace("-", ""),
        "{" + ID + "}",
        "urn:uuid:" + ID,
        ID.replace("-4", "-1"),
        ID + "\n",
        ID.replace("-9", "-c"),
    ],
)
def test_resource_id_refuses_what_is_no_random_uuid(text: str) -> None:
    with pytest.raises(InvalidInput, match="a UUID of version 4"):
        ResourceId.parse(text)


@pytest.mark.parametrize("text", ["a", "my-resource.v2", "A1", "org.example.a-b"])
def test_resource_name_has_the_grammar_of_host_names(text: str) -> None:
    assert parse_name(text) == Name(text)
    assert parse_name(text.upper()) == parse_name(text)
    assert str(parse_name(text.upper())) == text.upper()


@pytest.mark.parametrize("text", ["", "a_b", "-a", "a--b", "a.", "a b/../c", "é", "a/b"])
def test_resource_name_refuses_other_characters(text: str) -> None:
    with pytest.raises(InvalidName, match="is not a name"):
        parse_name(text)


@pytest.mark.parametrize("text", [ID, ID.upper(), "00000000-0000-0000-0000-000000000000"])
def test_resource_name_must_not_look_like_a_uuid(text: str) -> None:
    with pytest.raises(InvalidName, match="has the form of an id"):
        parse_name(text)


def test_dataset_id_is_read_in_any_multibase_and_printed_in_base16() -> None:
    dataset = DatasetId.parse(f"did:odf:f{KEY}")
    assert Did.parse(f"did:odf:F{KEY.upper()}") == str(dataset) == f"did:odf:f{KEY}"
    assert Did.parse(str(dataset)).is_odf


@pytest.mark.parametrize(
    "text", ["did:pkh:eip155:1:0xb9c5714089478a327f09197987f16f9e5d936e8a", "did:pkh:solana:mainnet:4t2p"]
)
def test_account_id_may_be_that_of_a_wallet(text: str) -> None:
    assert Did.parse(text) == text
    assert not Did.parse(text).is_odf


@pytest.mark.parametrize(
    "text",
    [
        "",
        "did:",
        "did:key:z6Mk",
        "did:pkh:eip155:1",
        "did:odf:",
        "did:odf:fed01",
        "did:pkh:eip155:1:0x/1",
        "alice",
    ],
)
def test_did_refuses_other_methods_and_forms(text: str) -> None:
    with pytest.raises(InvalidInput):
        Did.parse(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2026-11-21T12:00:00+02:00", "2026-11-21T10:00:00Z"),
        ("2026-11-21T12:00:00.5Z", "2026-11-21T12:00:00.500Z"),
        ("2026-11-21T12:00:00.0000010Z", "2026-11-21T12:00:00.000001Z"),
        ("2026-11-21T12:00:00.000000001z", "2026-11-21T12:00:00.000000001Z"),
    ],
)
def test_date_time_is_printed_in_utc_with_0_3_6_or_9_digits(text: str, shown: str) -> None:
    assert str(Timestamp.parse(text)) == shown


def test_date_time_needs_an_offset() -> None:
    with pytest.raises(InvalidInput, match="RFC 3339"):
        Timestamp.parse("2026-11-21T12:00:00")


@pytest.mark.parametrize("text", ["a@b", "first.last+tag@mail.example.com"])
def test_email_is_local_at_domain(text: str) -> None:
    assert parse_email(text) == text


@pytest.mark.parametrize("text", ["", "a", "@b", "a@", "a@b@c", "a b@c", "a@b..c", "a@.b", "a@b\n"])
def test_email_refuses_other_strings(text: str) -> None:
    with pytest.raises(InvalidInput, match="email"):
        parse_email(text)


@pytest.mark.parametrize(
    "text", ["https://example.com", "HTTP://u:p@h:1/a?b#c", "http://[::1]/", "ftp://h/a", "s3://b", "urn:x:y"]
)
def test_uri_is_absolute(text: str) -> None:
    assert parse_uri(text) == text


@pytest.mark.parametrize(
    "text",
    ["", "example.com", "/a", "//h/a", "http:", "https:///a", "http:a", "1a:b", "a:", "http://h/a b", "x:\n"],
)
def test_uri_without_scheme_or_host_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="expected an address"):
        parse_uri(text)


@pytest.mark.parametrize(
    ("text", "base", "context", "version", "name"),
    [
        (f"{CORE}/dataset/v1alpha1/Dataset", CORE, "dataset", "v1alpha1", "Dataset"),
        (
            "https://kamu.dev/schemas/core/v1/MyResource",
            "https://kamu.dev/schemas",
            "core",
            "v1",
            "MyResource",
        ),
        ("https://h:8443/core/v12beta3/A", "https://h:8443", "core", "v12beta3", "A"),
        ("https://h/a/b/v1/v1/c/v1/D", "https://h/a/b/v1/v1", "c", "v1", "D"),
    ],
)
def test_type_uri_has_base_context_version_and_name(
    text: str, base: str, context: str, version: str, name: str
) -> None:
    uri = TypeUri.parse(text)
    assert uri == TypeUri(base=base, context=context, version=version, name=name)
    assert str(uri) == text
    assert uri.identity == (base, context, name)


@pytest.mark.parametrize(
    "text",
    [
        "Dataset",
        f"{CORE}/dataset/v1alpha1",
        f"{CORE}/dataset/v1alpha1/dataset",
        f"{CORE}/Dataset/v1alpha1/Dataset",
        f"{CORE}/data-set/v1alpha1/Dataset",
        f"{CORE}/dataset/v0/Dataset",
        f"{CORE}/dataset/v1gamma1/Dataset",
        f"{CORE}/dataset/v1alpha/Dataset",
        f"{CORE}/dataset/v1alpha1/Data_set",
        f"{CORE}/dataset/v1alpha1/Dataset/",
        f"{CORE}//dataset/v1alpha1/Dataset",
        "http://h/dataset/v1/Dataset",
        "https:///dataset/v1/Dataset",
        "https://h/dataset/v1/Dataset?x",
    ],
)
def test_type_uri_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not the URI of a type"):
        TypeUri.parse(text)


def test_type_uri_has_no_suffix() -> None:
    with pytest.raises(InvalidInput, match=re.escape("leave out .json")):
        TypeUri.parse(f"{CORE}/dataset/v1alpha1/Dataset.json")


def test_type_uri_cannot_be_built_from_parts_that_mean_others() -> None:
    with pytest.raises(InvalidInput):
        TypeUri(base="https://h", context="a/b", version="v1", name="C")


def test_type_identity_is_without_the_version() -> None:
    first, second = (TypeUri(context="flow", version=version, name="Flow") for version in ("v1alpha1", "v1"))
    assert first != second
    assert first.identity == second.identity


@pytest.mark.parametrize("text", ["Dataset", "datasetKind", "env", "my-type", "2d"])
def test_short_type_name_is_alphanumerics_joined_by_single_hyphens(text: str) -> None:
    assert parse_type_ref(text) == ShortTypeName(text)


@pytest.mark.parametrize("text", ["", "my_key", "a/b", "a.b", "a--b", "-a", "a-", "http://h", "a:b", "ä"])
def test_short_type_name_refuses_other_characters(text: str) -> None:
    with pytest.raises(InvalidInput, match="does not name a type"):
        parse_type_ref(text)


def test_type_ref_that_begins_with_https_is_a_uri() -> None:
    assert parse_type_ref(f"{CORE}/flow/v1alpha1/Flow") == TypeUri(context="flow", name="Flow")
