"""The demo's own node, used through the `odf` command like a user's."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any


def _require(
    words: tuple[str, ...], done: "subprocess.CompletedProcess[Any]", code: int, said: str = ""
) -> None:
    if done.returncode != code:
        sys.exit(f"{said}odf {' '.join(words)}: exit status {done.returncode}, expected {code}")


class DemoNode:
    """Runs `odf` with its own home."""

    def __init__(self, home: Path) -> None:
        """Prepare the node; starts nothing."""
        self.home = home
        self._environment = {**os.environ, "ODF_HOME": str(home / "node")}
        self._odf = str(Path(sys.executable).with_name("odf"))

    def run(self, *words: str, check: bool = True, code: int = 0) -> str:
        """Run `odf words…` and return its stdout; any other exit status than `code` ends the demo.

        Its stderr is shown only on failure: its progress display would overwrite ours.
        """
        done = subprocess.run(
            [self._odf, *words], env=self._environment, capture_output=True, text=True, check=False
        )
        if check:
            _require(words, done, code, done.stderr)
        return done.stdout

    def show(self, *words: str, code: int = 0) -> None:
        """Show the command and its output, which adapts to the terminal's width."""
        print("$ odf " + " ".join(words), flush=True)
        _require(words, subprocess.run([self._odf, *words], env=self._environment, check=False), code)
        print(flush=True)

    def json(self, *words: str, code: int = 0) -> Any:  # noqa: ANN401 - JSON
        """Run a command with `--output json`, and return the result."""
        return json.loads(self.run(*words, "--output", "json", code=code))

    def status(self) -> dict[str, str]:
        """Return the addresses of the node's parts."""
        return dict(self.json("status"))

    def push_topics(self) -> dict[str, str]:
        """Return the topic of each root's push source."""
        return {
            entry["alias"]: next(iter(entry["pushTopics"].values()))
            for entry in self.json("list")
            if entry["pushTopics"]
        }

    def tail(self, dataset: str) -> list[dict[str, Any]]:
        """Return all records of a dataset, ascending by offset."""
        return list(self.json("tail", dataset, "-n", "1000000"))

    def folder(self, dataset: str) -> Path:
        """Return a dataset's folder."""
        entry = next(e for e in self.json("list") if e["alias"] == dataset)
        return self.home / "node" / "datasets" / str(entry["id"]).removeprefix("did:odf:")

    def damaged_copy(self, dataset: str) -> tuple[Path, str]:
        """Copy a dataset and flip the middle byte of its largest slice; return the copy and the slice's name."""
        copy = self.home / "copy" / dataset
        shutil.copytree(self.folder(dataset), copy)
        target = max((copy / "data").iterdir(), key=lambda file: (file.stat().st_size, file.name))
        content = bytearray(target.read_bytes())
        content[len(content) // 2] ^= 1
        target.chmod(0o644)
        target.write_bytes(content)
        return copy, target.name

    def block_of(self, dataset: str, slice_name: str) -> str:
        """Return the hash of the block that declares a slice."""
        for block in self.json("log", dataset):
            if (block["event"].get("newData") or {}).get("physicalHash") == slice_name:
                return str(block["hash"])
        return f"no block of {dataset}"
