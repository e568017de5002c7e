"""States of polling sources written by other versions: read if possible, and never treated as a fresh start."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from odf_common.errors import InvalidInput
from odf_common.metadata.events import SourceState
from odf_ingest.poll.fetch.mqtt import MqttProgress
from odf_ingest.poll.polled_position import ETAG, MQTT, ReadFile, state_of

FILE = {"v": 1, "file": "a.csv", "size": 3, "modified": 5, "digest": "d"}
BATCH = {"v": 1, "client": "c", "number": 2, "ids": [1, 2], "digest": "d"}


def file_of(text: str) -> object:
    return ReadFile.parse(text)


def batch_of(text: str) -> object:
    return MqttProgress.parse(state_of(MQTT, text))


def test_a_written_state_is_read_back() -> None:
    file = ReadFile(name="a.csv", size=3, modified=5, digest="d")
    assert file_of(json.dumps(FILE)) == ReadFile.parse(file.state().value) == file
    batch = MqttProgress(client="c", number=2, ids=(1, 2), digest="d")
    assert batch_of(json.dumps(BATCH)) == MqttProgress.parse(batch.state()) == batch
    without = {key: value for key, value in BATCH.items() if key != "ids"}
    assert batch_of(json.dumps(without)) == MqttProgress(client="c", number=2, digest="d")


@pytest.mark.parametrize("state", [None, state_of(ETAG, json.dumps(BATCH))])
def test_a_state_of_another_kind_is_ignored(state: SourceState | None) -> None:
    assert MqttProgress.parse(state) == MqttProgress()


@pytest.mark.parametrize(("parse", "sound"), [(file_of, FILE), (batch_of, BATCH)])
def test_a_state_that_cannot_be_read_is_refused(
    parse: Callable[[str], object], sound: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput, match="unknown version 2"):
        parse(json.dumps({**sound, "v": 2}))
    required = sound.keys() - {"ids"}
    odd = [{key: value for key, value in sound.items() if key != missing} for missing in required]
    for plain in ("{", "[]", "7", *map(json.dumps, odd)):
        with pytest.raises(InvalidInput, match="cannot be read"):
            parse(plain)
