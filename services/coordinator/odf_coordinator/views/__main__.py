"""Start the views: `python -m odf_coordinator.views`."""

from odf_common.service.lean_imports import lean_imports

with lean_imports("pandas", "rich"):
    from odf_coordinator.views.app import main

main()
