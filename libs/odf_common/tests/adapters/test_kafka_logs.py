import pytest

from odf_common.adapters.kafka import client_config
from odf_common.adapters.kafka.client_config import LATE_LOG_SECONDS, LOGGER, note_connected

REFUSED = "FAIL [thrd:a]: a: Connect to ipv4#127.0.0.1:9 failed: Connection refused"


def test_refused_connections_are_errors_only_after_the_broker_has_answered(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting = client_config._StartupFilter()
    monkeypatch.setattr(client_config, "_STARTING", starting)
    monkeypatch.setattr(LOGGER, "filters", [starting])
    LOGGER.error(REFUSED)
    LOGGER.error("FAIL [thrd:a]: a: SSL handshake failed")
    note_connected()
    LOGGER.error(REFUSED)  # from before: the client was polled only now
    monkeypatch.setattr(starting, "ends_at", starting.ends_at - LATE_LOG_SECONDS)
    note_connected()
    LOGGER.error(REFUSED)
    assert [(one.levelname, "refused" in one.message) for one in caplog.records] == [
        ("ERROR", False),
        ("ERROR", True),
    ]
