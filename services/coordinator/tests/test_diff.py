"""What a snapshot changes in a chain, and where it breaks a rule."""

import pytest
from odf_testing.builders import a_query, a_seed

from odf_common.errors import InvalidInput
from odf_common.metadata.events import KnownEvent, SetInfo, SetTransform
from odf_coordinator.definitions.diff import require_admitted


@pytest.mark.parametrize("before", [0, 1, 2])
def test_an_event_that_breaks_a_rule_is_named_by_its_place(before: int) -> None:
    events: list[KnownEvent] = [SetInfo(description=str(number)) for number in range(before)]
    events.append(SetTransform(inputs=(), transform=a_query()))
    with pytest.raises(InvalidInput, match="not allowed in a root dataset") as caught:
        require_admitted(None, a_seed(), events)
    assert caught.value.where == f"content.metadata[{before}]"
