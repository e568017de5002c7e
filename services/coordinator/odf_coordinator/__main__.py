"""Start the coordinator: `python -m odf_coordinator`."""

from odf_common.service.lean_imports import lean_imports

with lean_imports("pandas", "rich"):
    from odf_common.service.run import run_service
    from odf_coordinator.service import build

run_service(build)
