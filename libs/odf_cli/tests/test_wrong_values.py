"""A wrong value of an option or argument is misuse, and is reported before a command looks for the node."""

from pathlib import Path

import pytest

from odf_cli import main as cli

NOON = "expected an RFC 3339 time such as 2020-01-01T12:00:00Z, got 'noon'"
COUNT = "expected an integer from 1 to 2147483647, got"
POSITION = "expected earliest, latest, keep or an offset, such as 1200 or 0:1200,1:1200, got 'soon'"
PLACE = "expected PARTITION/OFFSET or row/NUMBER, such as 0/1234, or SOURCE/0/1234, got '7'"


@pytest.fixture(autouse=True)
def no_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODF_HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("line", "name", "why"),
    [
        ("ingest orders - --event-time noon", "--event-time", NOON),
        ("pull orders --set-watermark noon", "--set-watermark", NOON),
        ("source resume orders --from soon", "--from", POSITION),
        ("rejected list orders -n -4", "-n", "expected an integer from 0 to 2147483647, got -4"),
        ("rejected list orders -n 99999999999", "-n", "to 2147483647, got 99999999999"),
        ("rejected list orders -n few", "-n", "'few' is not a valid integer"),
        ("rejected show orders 7", "LOCATION", PLACE),
        ("rejected retry orders 0/1 7", "LOCATIONS", PLACE),
        ("rejected drop orders 7", "LOCATIONS", PLACE),
        ("tail orders -n 0", "-n", f"{COUNT} 0"),
        ("tail orders -n 2147483648", "-n", f"{COUNT} 2147483648"),
        ("log orders --limit 0", "--limit", f"{COUNT} 0"),
        ("log orders --limit 99999999999999999999999", "--limit", f"{COUNT} 99999999999999999999999"),
        ("new orders --from orders.csv --input-format xls", "--input-format", "expected one of csv, "),
        ("token create ann --expires soon", "--expires", "expected 30m, 12h, 90d or never, got 'soon'"),
    ],
)
def test_a_wrong_value_is_misuse(line: str, name: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(line.split()) == 2
    shown = capsys.readouterr().err.splitlines()[-1]
    assert shown.startswith("Error: Invalid value for ")
    assert name in shown
    assert why in shown


@pytest.mark.parametrize(
    "line",
    [
        "ingest orders - --event-time 2026-01-01T00:00:00Z",
        "pull orders --set-watermark 2026-01-01T00:00:00+01:00",
        *(f"source resume orders --from {start}" for start in ("earliest", "keep", "12", "0:12,1:7")),
        "source resume orders",
        "rejected list orders -n 0",
        "rejected list orders",
        "rejected retry orders 0/1 row/7",
        "tail orders -n 2147483647",
        "log orders --limit 1",
    ],
)
def test_with_a_valid_value_the_command_looks_for_the_node(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(line.split()) == 1
    assert "no node is running" in capsys.readouterr().err
