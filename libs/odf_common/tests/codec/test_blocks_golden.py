"""Blocks of other implementations, byte for byte: files in tests/vectors, and the golden hashes of wire-facts §2.5."""

import base64
import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from odf_common.codec.flatbuffers import block_hash, decode_block, encode_block
from odf_common.codec.manifests import block_from_text
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata import data_schema as sc
from odf_common.metadata import events as ev
from odf_common.metadata import events as st
from odf_common.metadata import fetching
from odf_common.metadata.events import MetadataBlock
from odf_common.metadata.scalars import ExtraAttributes, Timestamp

VECTORS = Path(__file__).parents[4] / "tests" / "vectors"
BLOCKS: list[dict[str, Any]] = json.loads((VECTORS / "metadata-blocks.json").read_text())
NOON = Timestamp.parse("2020-01-01T12:00:00Z")


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("vector", BLOCKS, ids=lambda vector: vector["name"])
def test_vector_encodes_to_the_same_bytes_from_json_and_from_its_own_bytes(
    vector: dict[str, Any], version: int
) -> None:
    expected = bytes.fromhex(vector[f"version{version}"]["manifest_hex"])
    from_json, _ = block_from_text(json.dumps(vector["block"]).encode(), vector["name"])
    decoded = decode_block(expected)
    assert decoded.version == version
    assert decoded.block == from_json
    assert encode_block(from_json, version) == expected
    assert str(block_hash(expected)) == vector[f"version{version}"]["hash"]


@pytest.mark.parametrize("file", sorted(VECTORS.glob("datasets/*/blocks/*")), ids=lambda file: file.name[-8:])
def test_stored_block_survives_decoding_and_encoding(file: Path) -> None:
    raw = file.read_bytes()
    decoded = decode_block(raw)
    assert str(block_hash(raw)) == file.name
    assert encode_block(decoded.block, decoded.version) == raw


@pytest.mark.parametrize("log", sorted(VECTORS.glob("datasets/*.log.yaml")), ids=lambda log: log.name)
def test_log_printed_by_kamu_gives_the_hashes_it_names(log: Path) -> None:
    for document in log.read_text().split("\n---\n"):
        named = document.partition("# Block: ")[2].split()[0]
        block, version = block_from_text(document.encode(), log.name)
        assert version is not None
        assert str(block_hash(encode_block(block, version))) == named


def mh(text: str) -> Multihash:
    return Multihash.sha3(hashlib.sha3_256(text.encode()).digest())


def did(seed: str) -> DatasetId:
    """The test keys of wire-facts §2.5: 32 bytes of xoshiro256++ seeded with the name."""
    mask = (1 << 64) - 1
    padded = seed.encode().ljust(32, b"\0")
    s = [int.from_bytes(padded[at : at + 8], "little") for at in range(0, 32, 8)]

    def rotated(x: int, by: int) -> int:
        return (x << by | x >> (64 - by)) & mask

    def words() -> Iterator[int]:
        for _ in range(4):
            yield (rotated((s[0] + s[3]) & mask, 23) + s[0]) & mask
            t = s[1] << 17 & mask
            s[2] ^= s[0]
            s[3] ^= s[1]
            s[1] ^= s[2]
            s[0] ^= s[3]
            s[2] ^= t
            s[3] = rotated(s[3], 45)

    return DatasetId.of_key(b"".join(word.to_bytes(8, "little") for word in words()))


def slice_of(logical: str, physical: str, interval: tuple[int, int], size: int) -> ev.DataSlice:
    start, end = interval
    return ev.DataSlice(
        logical_hash=mh(logical),
        physical_hash=mh(physical),
        offset_interval=ev.OffsetInterval(start=start, end=end),
        size=size,
    )


def sql(**fields: Any) -> st.TransformSql:
    return st.TransformSql(**fields)


def field(name: str, kind: sc.DataType, extra: str | None = None) -> sc.DataField:
    return sc.DataField(name=name, type=kind, extra=ExtraAttributes(extra) if extra else None)


ADDED = ev.AddData(prev_checkpoint=mh("prev"), prev_offset=9)
SLICE = slice_of("logical", "physical", (10, 99), 100)
FROM_PUSH = ev.AddData(
    prev_checkpoint=mh("checkpoint"),
    prev_offset=9,
    new_data=SLICE,
    new_source_state=ev.SourceState(
        source_name="push-source-1", kind="kamu/kafka-offset", value="SOME_OFFSET"
    ),
)
POLLED = ev.SetPollingSource(
    fetch=fetching.FetchStepFilesGlob(
        path="./*.csv",
        event_time=fetching.EventTimeSourceFromMetadata(),
        cache=fetching.SourceCachingForever(),
        order=fetching.SourceOrdering.ByName,
    ),
    prepare=(fetching.PrepStepDecompress(format=fetching.CompressionFormat.Gzip),),
    read=st.ReadStepGeoJson(ddl_schema=("a: INT", "b: INT")),
    preprocess=sql(engine="spark", version="1.0.0", query="SELECT * FROM input"),
    merge=st.MergeStrategyLedger(primary_key=("a",)),
)
ODF_AB = sc.DataSchema(fields=(field("a", sc.DataTypeInt32()), field("b", sc.DataTypeInt32())))
ARROW_SCHEMA = base64.b64decode(
    "DAAAAAgACAAAAAQACAAAAAQAAAACAAAAQAAAAAQAAADY////GAAAAAwAAAAAAAAGEAAAAAAAAAAEAAQABAAAAAEAAABiAAAAEAAUABAAAA"
    "APAAQAAAAIABAAAAAYAAAAIAAAAAAAAAIcAAAACAAMAAQACwAIAAAAQAAAAAAAAAEAAAAAAQAAAGEAAAA="
)
CENSUS = '{"opendatafabric.org/type":{"kind":"ObjectLink","linkType":{"kind":"Multihash"}}}'
WIDE_SCHEMA = sc.DataSchema(
    fields=(
        field(
            "city",
            sc.DataTypeString(),
            '{"arrow.apache.org/bufferEncoding":{"kind":"View","offsetBitWidth":32}}',
        ),
        field("population", sc.DataTypeUInt64()),
        field("census", sc.DataTypeOption(inner=sc.DataTypeString()), CENSUS),
        field("links", sc.DataTypeList(item_type=sc.DataTypeString())),
    ),
    extra=ExtraAttributes('{"kamu.dev/archetype":"Collection"}'),
)
LICENSE = ev.SetLicense(
    short_name="OGL-Canada-2.0",
    name="Open Government Licence - Canada",
    spdx_id="OGL-Canada-2.0",
    website_url="https://open.canada.ca/en/open-government-licence-canada",
)
PUSH_CSV = ev.AddPushSource(
    source_name="s1",
    read=st.ReadStepCsv(separator=",", header=False),
    preprocess=sql(
        engine="datafusion",
        queries=(st.SqlQueryStep(alias="x", query="select 1"), st.SqlQueryStep(query="select * from x")),
    ),
    merge=st.MergeStrategyAppend(),
)
FROM_URL = ev.SetPollingSource(
    fetch=fetching.FetchStepUrl(
        url="https://example.com/a.zip",
        event_time=fetching.EventTimeSourceFromPath(pattern=r"(\d+)", timestamp_format="%Y"),
        headers=(fetching.RequestHeader(name="X", value="y"),),
    ),
    prepare=(
        fetching.PrepStepDecompress(format=fetching.CompressionFormat.Zip, sub_path="a.csv"),
        fetching.PrepStepPipe(command=("jq", ".")),
    ),
    read=st.ReadStepParquet(),
    merge=st.MergeStrategySnapshot(primary_key=("id",), compare_columns=("v",)),
)
EXECUTED = ev.ExecuteTransform(
    query_inputs=(
        ev.ExecuteTransformInput(
            dataset_id=did("input1"),
            prev_block_hash=mh("a"),
            new_block_hash=mh("b"),
            prev_offset=9,
            new_offset=20,
        ),
        ev.ExecuteTransformInput(dataset_id=did("input2"), prev_block_hash=mh("a"), new_block_hash=mh("b")),
    ),
    prev_checkpoint=mh("checkpoint"),
    prev_offset=9,
    new_data=slice_of("foo", "bar", (10, 19), 10),
    new_watermark=NOON,
)
TRANSFORM = ev.SetTransform(
    inputs=(
        ev.TransformInput(dataset_ref=str(did("input1")), alias="input1"),
        ev.TransformInput(dataset_ref="input2", alias="input2"),
    ),
    transform=sql(engine="spark", query="SELECT * FROM input1 UNION ALL SELECT * FROM input2"),
)
PUSH_NDJSON = ev.AddPushSource(
    source_name="default",
    read=st.ReadStepNdJson(ddl_schema=("city STRING", "population BIGINT")),
    merge=st.MergeStrategyLedger(primary_key=("city",)),
)
FIRST_DATA = ev.AddData(
    new_data=slice_of("logical", "physical", (0, 0), 1),
    new_checkpoint=ev.Checkpoint(physical_hash=mh("cp"), size=0),
    new_watermark=NOON,
)
LINKED = ExtraAttributes('{"opendatafabric.org/linkedObjects":{"numObjectsNaive":10,"sizeNaive":100}}')
README = ev.SetAttachments(
    attachments=ev.AttachmentsEmbedded(items=(ev.AttachmentEmbedded(path="README.md", content="# Title"),))
)

# event, SHA3-256 of its block in version 3, in version 2
GOLDEN: dict[str, tuple[ev.KnownEvent, str, str]] = {
    "c0": (
        ev.AddData(),
        "a93874702479f83ddff1e7a660ca78085def333c86501b0d895fa3aec79c7189",
        "73e2977b8beae4aef53670067c1173b9d68e69721908d080b84286ab366d1e14",
    ),
    "c1": (
        ADDED,
        "86aeb7dee0502b4886761de5e45b5111c0bc9e0fbfee02e3685487109305ef56",
        "32516689d582e02e77778af75a71b6d131a640d0bebed99b99d96b385cee915f",
    ),
    "c2": (
        replace(ADDED, new_watermark=NOON),
        "d1b412dab2a6af53f3e1b183834557bbf1c4689e2fc9b92fc0d04741ef607ecc",
        "1ad91cabca81e1f1771f28070980bfdcf409e5f8a877b3976b611401d2998189",
    ),
    "c3": (
        replace(ADDED, new_data=SLICE, new_watermark=NOON),
        "1fcf10cb843746c4c44e6c288e216995701aa073426fc4bebe14f1680f8ec6d1",
        "ec1d3f6aa39bb256fcae16d79a95705f614e26d9a86d393b6f9e6b19a60d0df6",
    ),
    "c4": (
        POLLED,
        "eb61498b7362d334131a8486a5ce4cc2638d7c1aa3e4da82a19cf834a77df718",
        "18cc1680b3d36f63358b59d469d76dcbf71ddac3ea66a693ce4158cfc5dfb28d",
    ),
    "c5": (
        replace(POLLED, read=st.ReadStepGeoJson(schema=ODF_AB)),
        "f96c90e9e9700819ba05d87f66b200a18a08404706ac62cde6d68bc350e73861",
        "39cfd70254179a7cdea4263f951b8acbdc2b8a20dc0c1c4c572ab6da2dd9b28a",
    ),
    "c6": (
        FROM_PUSH,
        "9326dc5daab04877a9f006ff6b1636a8fa9dcec9615b54f741a1a90091eaf694",
        "db5044313bbd596fb54bef9387ad61a18206d1e93e833db4d1159d20cd3cac58",
    ),
    "c7": (
        replace(FROM_PUSH, extra=LINKED),
        "54f64c642cca6f67416ebe2b29e5d9414ece91f819efe97cd437fbe542c61bbb",
        "00b4cf8b3b22ff71931696f13cc5c06f80eb3360b6d7dccdd3a3b4fb1b5d943c",
    ),
    "c8": (
        TRANSFORM,
        "bb6aa1f9689b794c75affa709ae2477b209411d9ad092c2318ecd9ea94121bcc",
        "dc2ab3737792021b6794d3969315bb521701780c91548104f149906d98c8da70",
    ),
    "c9": (
        EXECUTED,
        "21cab7396525e614beeafe21c05a38bf597a39a191cc14147b9c5ec32210cf82",
        "a955281dca303056a88e39291d17e045d88ecdafca3ef9e75b09b83169633b52",
    ),
    "c10": (
        ev.SetDataSchema(raw_arrow_schema=ARROW_SCHEMA),
        "a7e79d088ca7bac689f12d71ae64b93e7bab62a7db2fec83ea89e9bf90dd89ed",
        "44d64d764fb207713407b9a761566409404c907f765993105608299cd6f5bebf",
    ),
    "c11": (
        ev.SetDataSchema(schema=WIDE_SCHEMA),
        "80865248519d55fa04598e24ba42884728efe70956e640dca4df5ec8043c69ca",
        "33d0a65cfb9853f14830fc84e443767d9acfedd24d13c3c22bdc82f3be1b507f",
    ),
    "SetVocab": (
        ev.SetVocab(event_time_column="date"),
        "afdde5c54d4567706c6e4ad82e472ed7660b6b52360cf92a0380206dc81e4f44",
        "b415387ab109565fc182b8e5518636d70c8eee572fcc3a7a9bf41067a7905e8f",
    ),
    "SetInfo": (
        ev.SetInfo(description="Test", keywords=("a", "b")),
        "dd0774485d3d7646d67a39ddded76d10e1d3622dfc6ecf4cc756d50df3711a1d",
        "263468044335e652b670cfc32d5407ece61dcf6f4c3fc6aee453f862573c0b8f",
    ),
    "SetInfo with an empty vector": (
        ev.SetInfo(keywords=()),
        "b83c8a92ceb1acda45dbe6e2b5692e9620d10db6868db497c31c19e2e6e21e2a",
        "903aa43f067367f3cdba9507ba4662942f233051c473615465a4aeca8c0f7be6",
    ),
    "SetLicense": (
        LICENSE,
        "0f108e642eac15b3db86e6e29ab66384e174a20ccbef2ee5e4ff1e501fdc8a3f",
        "248f65787529d5d984da4b04c862f8c102a7e5acc5393bac474f167f79de30cb",
    ),
    "SetAttachments": (
        README,
        "0ba5dfb4197e49c342e5cc2596b1fcb950ead1c7eea1c2c0b6054468edc0599b",
        "22908e55ce9f76dde8e5fd3e6f90522a0ada173f72beebb1b0c3a6973e06334c",
    ),
    "AddPushSource of NdJson": (
        PUSH_NDJSON,
        "736a61e518154df762a36b52836185875c4fa72dba102a8fe7fc1fb8e07cc723",
        "27f981fbdca45420edadaa4e33f5bdb76d8b1c3bda0b8cf3c03943c06128a245",
    ),
    "AddPushSource of Csv": (
        PUSH_CSV,
        "36508d05bb47c470ceca7519246add061f356bd2e40bd4f11b5c54d82be61d1b",
        "eae35ade5be0b30a976b20c428329c565b97733c8fed19b39c6481c7b22dd8a5",
    ),
    "DisablePushSource": (
        ev.DisablePushSource(source_name="default"),
        "9037a5dd5001d21fb7fbe4b568e77e34446bc81f679c581a8440df64a7347c70",
        "679e215668eab720027486af400fd35b2abb1f9b574937013831073b9a7016e9",
    ),
    "DisablePollingSource": (
        ev.DisablePollingSource(),
        "b78b68ea5b7f9037ef7571028b7e9a700054c20ceb4b9d38dd1e2cb12bebb974",
        "906742f1dfcdea6cfb177e2229939048be474be0951f15b9e895883232b5ff1d",
    ),
    "SetPollingSource of Url": (
        FROM_URL,
        "6d478aa7d6540e5c452436944eb7334dcf0883b2b009ec23f8cc37a6c91d7984",
        "2d2ace20de70079a5f36d28d18b65e81abc36d5f12c9ff419eb8038c99a8a423",
    ),
    "AddData with zeros": (
        FIRST_DATA,
        "16b3488d5b1c600ba74993f149c07ed2d16829ee3c3e58e035ddf9fbd43339ac",
        "ba56fffe7f5fb811d434647bcdc7efd46a42c20b643b284498d6ffd960f9fff2",
    ),
    "AddData with a nullable zero": (
        ev.AddData(prev_offset=0, new_watermark=NOON),
        "c677e8f4fa409aeff7a18242ffc3cd876f3b8c1746653cb59d4f161381a50a7c",
        "84b012f7fd2b661fd2328c14f2b9adb7a1ffb62d95b7caeb243ad718d008635e",
    ),
    "Seed of a root": (
        ev.Seed(dataset_id=did("foo"), dataset_kind=ev.DatasetKind.Root),
        "d9fc7020c700acdd4e44267b07bd4ea8f112ff291d1add3c3e02c705de058352",
        "d9afc9d877975e3b6d4c5544b637e847bf9a17d8202c3c0ace9f6eeabd31a248",
    ),
    "Seed of a derivative": (
        ev.Seed(dataset_id=did("bar"), dataset_kind=ev.DatasetKind.Derivative),
        "a69a4972bd468eff1698ca908617e839a837fbfa0b2758ed7d3b0ad8588d42f7",
        "ae8253daeeed0b7f83a20b18af2edf179b51b993083426e559968856ad760192",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_block_has_the_golden_hash_in_both_versions(name: str) -> None:
    event, version_3, version_2 = GOLDEN[name]
    is_seed = isinstance(event, ev.Seed)
    block = MetadataBlock(
        system_time=NOON,
        prev_block_hash=None if is_seed else mh("prev"),
        sequence_number=0 if is_seed else 117,
        event=event,
    )
    for version, expected in ((3, version_3), (2, version_2)):
        raw = encode_block(block, version)
        assert hashlib.sha3_256(raw).hexdigest() == expected
        assert decode_block(raw).block == block
