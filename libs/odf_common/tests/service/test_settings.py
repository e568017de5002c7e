from pathlib import Path

import pytest

from odf_common.errors import InvalidInput, Unavailable
from odf_common.service.settings import Settings, described


def test_nothing_told_gives_the_defaults() -> None:
    settings = Settings.from_env({})
    assert settings.home == Path.cwd() / ".odf"
    assert (settings.kafka, settings.block_version, settings.slice_max_bytes) == (None, 3, 16 * 1024 * 1024)
    assert settings.verify_on_commit
    assert not settings.signed_columns
    assert not settings.sign_blocks


def test_variables_are_parsed() -> None:
    settings = Settings.from_env({
        "ODF_HOME": "data", "ODF_KAFKA": "a:9092, b:9092", "ODF_REDIS": "redis://r:1/0", "ODF_SIGNED_COLUMNS": "1",
        "ODF_LOG_LEVEL": "DEBUG", "ODF_BLOCK_VERSION": "2", "ODF_ENGINE": "", "ODF_SIGN_BLOCKS": "1",
    })  # fmt: skip
    assert settings.home == Path.cwd() / "data"
    assert settings.kafka == "a:9092,b:9092"
    assert settings.redis == "redis://r:1/0"
    assert (settings.signed_columns, settings.log_level, settings.block_version) == (True, "debug", 2)
    assert settings.engine is None
    assert settings.sign_blocks


def test_all_faults_are_reported_together() -> None:
    wrong = {
        "ODF_KAFKA": "kafka", "ODF_ENGINE": "h:99999", "ODF_BLOCK_VERSION": "4", "ODF_SIGNED_COLUMNS": "maybe",
        "ODF_LOG_LEVEL": "loud", "ODF_METRICS_PORT": "-1", "ODF_SPARK_MASTER": "sc://host",
    }  # fmt: skip
    with pytest.raises(InvalidInput) as caught:
        Settings.from_env(wrong)
    assert all(name in str(caught.value) for name in wrong)


def test_passwords_are_not_shown() -> None:
    shown = Settings.from_env({"ODF_REDIS": "redis://me:secret@host:1/0"}).shown()
    assert shown["ODF_REDIS"] == "redis://me:***@host:1/0"


def test_what_was_not_told_is_unavailable_by_name() -> None:
    with pytest.raises(Unavailable, match="ODF_ENGINE is not set"):
        Settings.from_env({}).required("engine")


def test_every_setting_says_what_it_is_for() -> None:
    assert all(meaning for _, _, meaning in described())
