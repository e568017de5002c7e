"""Start the coordinator: `python -m odf_coordinator`."""

from odf_common.service.run import run_service
from odf_coordinator.service import build

run_service(build)
