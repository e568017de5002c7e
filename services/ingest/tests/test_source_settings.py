from pathlib import Path

import pytest

from odf_common.adapters.local.stores import LocalBlobStore
from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import DatasetId
from odf_ingest.source_settings import BadRecords, EmptySnapshot, SourceSettings, load_settings, save_settings

DATASET = DatasetId.of_key(bytes(32))


def test_a_source_that_no_user_configured_has_the_defaults(tmp_path: Path) -> None:
    assert load_settings(LocalBlobStore(tmp_path), DATASET, "default") == SourceSettings()


def test_settings_of_one_source_are_kept_next_to_those_of_another(tmp_path: Path) -> None:
    blobs = LocalBlobStore(tmp_path)
    stopping = SourceSettings(bad_records=BadRecords.STOP, max_retracted_share=0.9)
    refusing = SourceSettings(empty_snapshot=EmptySnapshot.REFUSE)
    save_settings(blobs, DATASET, "a", stopping)
    save_settings(blobs, DATASET, "b", refusing)
    assert load_settings(blobs, DATASET, "a") == stopping
    assert load_settings(blobs, DATASET, "b") == refusing


def test_a_source_set_back_to_the_defaults_leaves_no_note(tmp_path: Path) -> None:
    blobs = LocalBlobStore(tmp_path)
    save_settings(blobs, DATASET, "a", SourceSettings(bad_records=BadRecords.STOP))
    save_settings(blobs, DATASET, "a", SourceSettings())
    assert blobs.note(DATASET, "sources") is None


def test_only_named_settings_change() -> None:
    before = SourceSettings(bad_records=BadRecords.STOP)
    assert before.with_changes({"maxRetractedShare": "0.9"}) == SourceSettings(
        bad_records=BadRecords.STOP, max_retracted_share=0.9
    )


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("badRecord", "stop", "badRecord: unknown setting of a source; choose from badRecords, "),
        ("badRecords", "ignore", "badRecords: expected one of auto, dead-letter, stop, got 'ignore'"),
        ("maxRetractedShare", "most", "maxRetractedShare: expected a number, got 'most'"),
        ("maxRetractedShare", "1.5", "maxRetractedShare: expected 0 to 1, got 1.5"),
        ("retractionGuardRows", "-1", "retractionGuardRows: expected 0 or more"),
        ("watermarkDelay", "2", "watermarkDelay: expected a duration such as 90s, 30m, 2h or 1d, got '2'"),
        ("watermarkDelay", "none", "watermarkDelay: expected a duration, such as 0 or 2h"),
        (
            "maxFuture",
            "soon",
            "maxFuture: expected a duration such as 90s, 30m, 2h or 1d, or none, got 'soon'",
        ),
        ("schemaRegistry", "registry:8081", "schemaRegistry: expected an address such as https://"),
        ("schemaRegistry", "ftp://registry", "schemaRegistry: expected an address such as https://"),
        ("schemaRegistry", "http://[::", "schemaRegistry: expected an address such as https://"),
        ("schemaRegistry", "http://a?b=c", "schemaRegistry: expected an address such as https://"),
        ("schemaRegistry", "http://" + "a" * 3000, "schemaRegistry: expected an address such as https://"),
        ("schemaRegistry", "http://me:hush@a", "schemaRegistry: has credentials; set schemaRegistryUser and"),
        ("schemaRegistryPassword", "hush", "schemaRegistryUser: is missing for the password"),
        ("schemaRegistryUser", "a:b", "schemaRegistryUser: must not have a colon"),
        ("schemaRegistryCa", "ca.pem", "schemaRegistryCa: expected the absolute path of a file"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(key: str, value: str, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        SourceSettings().with_changes({key: value})
    assert str(refused.value).startswith(said)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}'])
def test_a_damaged_note_is_named(tmp_path: Path, text: str) -> None:
    blobs = LocalBlobStore(tmp_path)
    blobs.set_note(DATASET, "sources", text)
    with pytest.raises(InvalidInput, match="settings of the sources of did:odf:"):
        load_settings(blobs, DATASET, "a")


def test_an_address_of_a_registry_may_have_2048_characters() -> None:
    address = "http://" + "a" * 2041
    assert SourceSettings().with_changes({"schemaRegistry": address}).schema_registry == address
    with pytest.raises(InvalidInput, match="expected an address"):
        SourceSettings().with_changes({"schemaRegistry": f"{address}a"})


def test_only_settings_that_differ_from_the_defaults_are_listed() -> None:
    assert SourceSettings().non_default() == {}
    chosen = SourceSettings().with_changes({"watermarkDelay": "90m", "badRecords": "auto"}).non_default()
    assert chosen == {"watermarkDelay": "1h30m"}


def test_a_password_is_kept_for_the_nodes_user_only_and_shown_to_none(tmp_path: Path) -> None:
    blobs = LocalBlobStore(tmp_path)
    login = {"schemaRegistry": "https://r", "schemaRegistryUser": "me", "schemaRegistryPassword": "hush"}
    save_settings(blobs, DATASET, "a", SourceSettings().with_changes(login))
    loaded = load_settings(blobs, DATASET, "a")
    assert loaded.schema_registry_password == "hush"
    assert loaded.shown()["schemaRegistryPassword"] == "***"
    assert "hush" not in f"{loaded} {loaded!r} {loaded.shown()}"
    (note,) = [one for one in tmp_path.rglob("*") if one.is_file() and "hush" in one.read_text()]
    assert note.stat().st_mode & 0o077 == 0
    assert loaded.with_changes({"schemaRegistryPassword": "hush2"}).schema_registry_password == "hush2"
    gone = loaded.with_changes(dict.fromkeys(login, ""))
    save_settings(blobs, DATASET, "a", gone)
    assert blobs.note(DATASET, "sources") is None
