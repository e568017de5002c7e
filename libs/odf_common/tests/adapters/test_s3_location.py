import pytest

from odf_common.adapters.s3.location import S3Access, S3Location, checked_endpoint
from odf_common.errors import InvalidInput


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("s3://bucket", S3Location(bucket="bucket")),
        ("s3://my.bucket-1/a/b/", S3Location(bucket="my.bucket-1", prefix="a/b")),
        (
            "s3+http://host:9000/bucket/a",
            S3Location(bucket="bucket", prefix="a", endpoint="http://host:9000"),
        ),
        ("s3+https://[::1]:9000/bucket", S3Location(bucket="bucket", endpoint="https://[::1]:9000")),
    ],
)
def test_urls_name_a_bucket_a_prefix_and_maybe_an_endpoint(url: str, location: S3Location) -> None:
    assert S3Location.parse(url) == location
    assert S3Location.parse(str(location)) == location


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://bucket", "got the scheme 'https'"),
        ("bucket", "got the scheme ''"),
        ("s3://", "'' is not the name of a bucket"),
        ("s3:///a", "'' is not the name of a bucket"),
        ("s3://Bucket", "'Bucket' is not the name of a bucket"),
        ("s3://b_c_d/", "'b_c_d' is not the name of a bucket"),
        ("s3+http://host", "'' is not the name of a bucket"),
        ("s3+http:///bucket", "expected http"),
        ("s3+http://ho st/bucket", "expected http"),
        ("s3+http://host:port/bucket", "expected http"),
        ("s3://bucket/a//b", "'' cannot be a part of a prefix"),
        ("s3://bucket/../other", "'..' cannot be a part of a prefix"),
        ("s3://bucket/a?b", "a query or a fragment"),
        ("s3://bucket/a#b", "a query or a fragment"),
        ("s3://[bucket", "expected s3://bucket"),
    ],
)
def test_other_urls_are_refused_with_a_reason(url: str, why: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        S3Location.parse(url)
    assert why in str(caught.value)


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidInput, match="set ODF_S3_ACCESS_KEY") as caught:
        S3Location.parse("s3+http://key:secret@host/bucket")
    assert "secret@" not in str(caught.value)


def test_secrets_are_not_shown() -> None:
    assert "hidden" not in repr(S3Access(access_key="key", secret_key="hidden", session_token="hidden"))


@pytest.mark.parametrize("text", ["host", "ftp://host", "http://host/path", "http://user@host", ""])
def test_an_endpoint_is_a_scheme_and_a_host(text: str) -> None:
    with pytest.raises(InvalidInput, match="expected http"):
        checked_endpoint(text)
