"""Which examples hypothesis tries."""

from odf_testing.profiles import load_profile

load_profile()
