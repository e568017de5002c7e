"""Start sync: `python -m odf_sync`."""

from odf_common.runtime.service import run_service
from odf_sync.service import build

run_service(build)
