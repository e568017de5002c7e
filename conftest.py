"""Which examples hypothesis tries."""

from odf_common.testing.profiles import load_profile

load_profile()
