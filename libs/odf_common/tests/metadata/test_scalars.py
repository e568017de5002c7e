import pytest

from odf_common.errors import InvalidInput
from odf_common.metadata.scalars import Timestamp


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-00:01"])
def test_a_time_that_leaves_the_calendar_in_utc_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="outside the years 1 to 9999"):
        Timestamp.parse(text)
