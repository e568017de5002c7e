"""Output of `odf pull` while the engine is running."""

import pytest

from odf_cli.commands.pull import REPORT_INTERVAL_SECONDS, Remarks, progress_text
from odf_cli.output import of_dataset
from odf_common.proto.odf.node.v1.coordinator_pb2 import PullItem

WORKING = PullItem(alias="hourly", state="running", stage="computing", rows=3, total=5)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("hourly has read a block", "hourly has read a block"),
        ("the data of hourly is missing", "the data of hourly is missing"),
        ("hourly.late is read", "hourly: hourly.late is read"),
        ("no column a", "hourly: no column a"),
    ],
)
def test_an_error_names_its_dataset_once(error: str, text: str) -> None:
    assert of_dataset("hourly", error) == text


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (PullItem(alias="hourly", state="running"), "hourly: running"),
        (WORKING, "hourly: computing, 3 of 5 rows"),
        (PullItem(alias="hourly", state="running", stage="reading"), "hourly: reading"),
        (PullItem(alias="hourly", stage="writing", late=7), "hourly: writing, 7 late"),
    ],
)
def test_progress_is_described_in_words(item: PullItem, text: str) -> None:
    assert progress_text(item) == text


def test_without_a_terminal_progress_is_printed_periodically(capsys: pytest.CaptureFixture[str]) -> None:
    time = [0.0]
    remarks = Remarks(is_terminal=False, now=lambda: time[0])
    for seconds in (
        REPORT_INTERVAL_SECONDS - 1,
        REPORT_INTERVAL_SECONDS,
        REPORT_INTERVAL_SECONDS + 1,
        2 * REPORT_INTERVAL_SECONDS,
    ):
        time[0] = seconds
        remarks.show(WORKING)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [progress_text(WORKING)] * 2


def test_a_terminal_shows_progress_live_and_gets_no_lines(capsys: pytest.CaptureFixture[str]) -> None:
    time = [0.0]
    remarks = Remarks(is_terminal=True, now=lambda: time[0])
    time[0] = 2 * REPORT_INTERVAL_SECONDS
    remarks.show(WORKING)
    assert capsys.readouterr().err == ""
