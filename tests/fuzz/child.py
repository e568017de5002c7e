"""One fuzzer of one target, in a separate process: `child.py TARGET LIBFUZZER-ARGUMENTS…`; `run.py` starts it.

An uncaught exception, a crash, a hang or too much memory ends the process, and libFuzzer saves the input.
"""

import resource
import sys
from importlib import import_module

import atheris

SPACE = 4 << 30  # bytes of address space, most of it taken by libraries; what runs over it is a MemoryError


def main() -> None:
    """Fuzz until libFuzzer ends."""
    resource.setrlimit(resource.RLIMIT_AS, (SPACE, SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    program, name, *arguments = sys.argv
    with atheris.instrument_imports(include=["odf_common", "odf_ingest.registry"]):
        target = import_module(f"targets.{name}")
    mutator = {"custom_mutator": target.mutate} if hasattr(target, "mutate") else {}
    atheris.Setup([program, *arguments], target.check, **mutator)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
