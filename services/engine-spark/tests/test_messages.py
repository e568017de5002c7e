import pytest

from odf_common.metadata.engine_messages import Watermark
from odf_common.metadata.scalars import Timestamp
from odf_engine_spark.server.messages import held_watermarks


def mark(text: str) -> Watermark:
    return Watermark(system_time=Timestamp(0), event_time=Timestamp.parse(text))


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ("9999-12-31T23:59:59Z", ["2262-04-11T23:47:16.854Z"]),
        ("2262-04-11T23:47:16.855Z", ["2262-04-11T23:47:16.854Z"]),
        ("2262-04-11T23:47:16.854Z", ["2262-04-11T23:47:16.854Z"]),
        ("2020-01-01T00:00:00.000000001Z", ["2020-01-01T00:00:00.000000001Z"]),
        ("1677-09-21T00:12:44Z", ["1677-09-21T00:12:44Z"]),
        ("0001-01-01T00:00:00Z", []),
    ],
)
def test_a_watermark_is_held_or_promises_less(given: str, held: list[str]) -> None:
    found = [str(one.event_time) for one in held_watermarks([mark(given)])]
    assert found == held
    assert all(-(2**63) <= Timestamp.parse(one).ns < 2**63 for one in found)
