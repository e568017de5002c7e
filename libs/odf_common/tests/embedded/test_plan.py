"""Which environment each part of an embedded node gets."""

from pathlib import Path

import pytest

from odf_common.embedded.plan import make_plan
from odf_common.service.settings import Settings

SECRETS = {
    "ODF_S3_ACCESS_KEY": "key",
    "ODF_S3_SECRET_KEY": "s3-secret",
    "ODF_S3_SESSION_TOKEN": "s3-token",
    "ODF_STORE": "s3://bucket",
}
REDIS = {"ODF_REDIS": "redis://:redis-secret@127.0.0.1:6379"}
KAFKA = {
    "ODF_KAFKA": "127.0.0.1:9092",
    "ODF_KAFKA_SECURITY_PROTOCOL": "sasl_plaintext",
    "ODF_KAFKA_SASL_MECHANISM": "plain",
    "ODF_KAFKA_USERNAME": "odf",
    "ODF_KAFKA_PASSWORD_FILE": "/kafka-secret",
}
WITHHELD = ("ODF_KAFKA", "ODF_REDIS", "ODF_S3_", "ODF_STORE")


@pytest.mark.parametrize("elsewhere", [{}, {**REDIS, **KAFKA}], ids=["embedded", "existing"])
def test_parts_that_need_no_credentials_get_none(tmp_path: Path, elsewhere: dict[str, str]) -> None:
    environment = {"ODF_HOME": str(tmp_path), "PATH": "/usr/bin:/bin", **SECRETS, **elsewhere}
    plan = make_plan(Settings.from_env(environment), (), {**environment, "OTHER": "kept"}, pid=1)
    parts = {part.name: part.environment for part in plan.parts}
    without = {"engine-spark"} if elsewhere else {"engine-spark", "kafka", "redis"}
    for name, of_part in parts.items():
        assert (of_part["OTHER"], of_part["ODF_HOME"], of_part["ODF_PART"]) == ("kept", str(tmp_path), name)
        if name in without:
            assert not [one for one in of_part if one.startswith(WITHHELD)]
            Settings.from_env(of_part)
        else:
            assert of_part.items() >= {**SECRETS, **elsewhere}.items()
    assert parts.keys() >= {"engine-spark", "coordinator", "sync"} | without
