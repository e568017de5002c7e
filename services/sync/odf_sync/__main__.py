"""Start sync: `python -m odf_sync`."""

from odf_common.service.run import run_service
from odf_sync.service import build

run_service(build)
