from pathlib import Path

from odf_testing import nycflights as data
from odf_testing.manifests import renamed
from odf_testing.story import Story, chunks

EXAMPLE = Path(__file__).parents[2] / "examples" / "nycflights"
ROOTS = ("flights", "weather")
DERIVED = ("flights.late", "flights.delays.hourly")
BATCHES = 6
CLOSING = "2013-01-03T12:00:00Z"


def test_one_batch_and_six_batches_derive_the_same_records(story: Story, tmp_path: Path) -> None:
    messages = {
        "flights": data.as_messages(data.of_days(data.flights(), data.days(2))),
        "weather": data.as_messages(data.of_days(data.weather(), data.days(2))),
    }
    for prefix, count in (("one", 1), ("six", BATCHES)):
        story.add(*renamed(EXAMPLE, prefix))
        files = {name: cut(messages[name], tmp_path / f"{prefix}.{name}", count) for name in ROOTS}
        # A few at a time, so that transforms run in between.
        for group in range(0, count, 3):
            for name in ROOTS:
                some = " ".join(map(str, files[name][group : group + 3]))
                story.node.run(f"ingest {prefix}.{name} {some}")
            story.pull(" ".join(f"{prefix}.{name}" for name in DERIVED))
        story.pull(" ".join(f"{prefix}.{name}" for name in ROOTS) + f" --set-watermark {CLOSING}")
        story.pull(" ".join(f"{prefix}.{name}" for name in DERIVED))
    for name in (*ROOTS, *DERIVED):
        one, six = story.chain(f"one.{name}"), story.chain(f"six.{name}")
        assert len(six.records()) > 0, name
        assert six.records() == one.records(), name
        assert six.watermark == one.watermark, name
    for name in ROOTS:
        assert story.chain(f"one.{name}").data_blocks == 1
        assert story.chain(f"six.{name}").data_blocks == BATCHES
    for name in DERIVED:
        assert story.chain(f"six.{name}").transforms > story.chain(f"one.{name}").transforms
    # With one input the order is the same too.
    late = [story.chain(f"{prefix}.flights.late").table for prefix in ("one", "six")]
    bare = [table.drop_columns(["system_time"]) for table in late if table is not None]
    assert bare[0].equals(bare[1])
    verdicts = story.verify(" ".join(f"{prefix}.{name}" for prefix in ("one", "six") for name in DERIVED))
    assert [(one["verdict"], one["problems"]) for one in verdicts] == [("valid", [])] * 4
    assert all(one["transforms"] > 0 for one in verdicts)


def cut(messages: list[bytes], folder: Path, count: int) -> list[Path]:
    """Write messages as `count` files, in order."""
    folder.mkdir()
    files = [folder / f"{number:03}.ndjson" for number in range(count)]
    for file, part in zip(files, chunks(messages, count), strict=True):
        file.write_bytes(b"\n".join(part) + b"\n")
    return files
