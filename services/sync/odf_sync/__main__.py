"""Start sync: `python -m odf_sync`."""

from odf_common.service.run import run_service
from odf_common.service.without_pandas import forbid_pandas
from odf_sync.service import build

forbid_pandas()
run_service(build)
