"""`make proto` may run next to a node: processes that start meanwhile find all modules."""

import subprocess
import threading
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
MODULE = Path("odf") / "bus" / "v1" / "bus_pb2.py"


def generate(folder: Path) -> None:
    """Generate the modules into a folder; what is installed is left alone."""
    command = [
        "make",
        "--silent",
        f"PROTO_OUT={folder}",
        "-o",
        ".venv/stamps/requirements",
        f"{folder}/.stamp",
    ]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)


def test_generated_modules_are_replaced_without_being_missing(tmp_path: Path) -> None:
    folder = tmp_path / "proto"
    generate(folder)
    first, removed = (folder / MODULE).stat().st_ino, folder / "odf" / "bus" / "v1" / "removed_pb2.py"
    removed.touch()
    (folder / ".stamp").unlink()
    is_generated, absences = threading.Event(), list[Path]()

    def watch() -> None:
        while not is_generated.is_set():
            absences.extend(file for file in (folder / MODULE, folder / "__init__.py") if not file.exists())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        generate(folder)
    finally:
        is_generated.set()
        watcher.join()
    assert absences == []
    assert (folder / MODULE).stat().st_ino != first, "generated again"
    assert not removed.exists(), "its proto file does not exist"
    assert not (folder / ".new").exists()
    assert (folder / ".stamp").exists()
