"""A home whose datasets were private by default is not served as one whose datasets are public by default."""

from odf_common.adapters.local import durable
from odf_common.adapters.local.faults import size_of, translate_os_errors
from odf_common.errors import InvalidInput
from odf_common.service.settings import MULTI_TENANT, TENANCY_FILE, Settings


class TenancyChanged(InvalidInput):
    """A home that belonged to a multi-tenant node would be served by a single-tenant one, and so become public."""

    MESSAGE = (
        "this home was used with ODF_TENANCY=multi, where datasets are private unless made public; "
        "without it everyone could read them"
    )

    def advice(self) -> str:
        """Return the two remedies."""
        return (
            f"set ODF_TENANCY=multi; or, to make public every dataset that `odf access set` did not make private, "
            f"remove $ODF_HOME/{TENANCY_FILE}"
        )


def require_tenancy(settings: Settings) -> None:
    """Raise `TenancyChanged` for a single-tenant node in the home of a multi-tenant one; remember which this is.

    The contrary change opens nothing: all datasets become private.
    """
    file = settings.home / TENANCY_FILE
    is_multi_tenant = settings.tenancy == MULTI_TENANT
    with translate_os_errors(file):
        was_multi_tenant = size_of(file) is not None
        if was_multi_tenant and not is_multi_tenant:
            raise TenancyChanged
        if is_multi_tenant and not was_multi_tenant:
            durable.write(file, f"{MULTI_TENANT}\n".encode())
