"""Start the views: `python -m odf_coordinator.views`."""

from odf_coordinator.views.app import main

main()
