"""How often the collector looks at every dataset."""

import threading
from dataclasses import replace

import pytest
from odf_testing.coordinator import Coordinator

from odf_coordinator.lifecycle.collector import Collector


class Hour(threading.Event):
    """Lets time pass where it is waited for; set after an hour."""

    def __init__(self, node: Coordinator) -> None:
        super().__init__()
        self.node, self.end = node, node.now + 3600

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.node.now += timeout
        if self.node.now >= self.end:
            self.set()
        return self.is_set()


@pytest.mark.parametrize(("seconds", "times"), [(0.01, 6), (3.0, 2)])
def test_a_look_at_all_datasets_is_repeated_less_often_if_it_takes_long(
    node: Coordinator, monkeypatch: pytest.MonkeyPatch, seconds: float, times: int
) -> None:
    looks: list[float] = []

    def sweep(_: Collector) -> None:
        looks.append(node.now)

    monkeypatch.setattr(Collector, "sweep", sweep)
    replace(node.collector, cpu_seconds=lambda: seconds * len(looks)).run(Hour(node))
    assert len(looks) == times
