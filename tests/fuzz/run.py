"""Coverage-guided fuzzing of the parsers of untrusted bytes: `python tests/fuzz/run.py TARGET --seconds N`.

An input has to be accepted, and then survive its round trip, or be refused with an `OdfError`. Anything else is a
finding: its input is saved, and the exit code is 1. A finding that is fixed joins the corpus.
"""

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
TARGETS = tuple(sorted(file.stem for file in (HERE / "targets").glob("*.py")))
HANG = 10  # seconds for one input
MEMORY = 1024  # MiB that the process may hold
LENGTH = 1 << 14  # bytes of an input; longer ones have separate tests
START = 120  # seconds that a busy machine may take to start and end the fuzzer
# The most memory that a process has held counts from its parent's: a shell between the two starts from little.
_AFRESH = ("sh", "-c", '"$@"; exit $?', "sh")
_RUNS = re.compile(r"^stat::number_of_executed_units:\s*(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a run: `output` of the fuzzer, and `findings`, the inputs that it saved."""

    executions: int
    output: str
    findings: tuple[Path, ...]
    is_clean: bool


def fuzz(target: str, seconds: int, *, findings: Path, corpus: Path | None = None) -> Outcome:
    """Fuzz for that long, or until the first finding; new inputs are added to `corpus` if given."""
    findings.mkdir(parents=True, exist_ok=True)
    before = set(findings.iterdir())
    with TemporaryDirectory() as scratch:
        learnt = corpus or Path(scratch)
        learnt.mkdir(parents=True, exist_ok=True)
        arguments = (
            f"-max_total_time={seconds}",
            f"-timeout={HANG}",
            f"-rss_limit_mb={MEMORY}",
            f"-max_len={LENGTH}",
            f"-artifact_prefix={findings}/{target}-",
            "-print_final_stats=1",
        )
        folders = (str(learnt), str(HERE / "corpus" / target))
        done = subprocess.run(
            [*_AFRESH, sys.executable, str(HERE / "child.py"), target, *arguments, *folders],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds + START,
            check=False,
        )
    output = done.stdout.decode(errors="replace")
    runs = _RUNS.search(output)
    return Outcome(
        executions=int(runs[1]) if runs else 0,
        output=output,
        findings=tuple(sorted(set(findings.iterdir()) - before)),
        is_clean=done.returncode == 0,
    )


def main() -> int:
    """Fuzz as requested on the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--findings", type=Path, default=HERE / "findings", help="where inputs are saved")
    parser.add_argument("--corpus", type=Path, help="what is learnt is kept here for the next run")
    asked = parser.parse_args()
    outcome = fuzz(asked.target, asked.seconds, findings=asked.findings, corpus=asked.corpus)
    if not outcome.is_clean:
        print(outcome.output)
    print(f"{asked.target}: {outcome.executions} executions, {len(outcome.findings)} findings")
    for file in outcome.findings:
        print(f"  {file}")
    return 0 if outcome.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
