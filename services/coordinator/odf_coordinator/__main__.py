"""Start the coordinator: `python -m odf_coordinator`."""

from odf_common.service.run import run_service
from odf_common.service.without_pandas import forbid_pandas
from odf_coordinator.service import build

forbid_pandas()
run_service(build)
