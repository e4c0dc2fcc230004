"""Names of tenants, the tenants that a client may use, and the settings for keeping them.

A tenant is a cluster or an application that decisions are made for. Requests that name none belong
to the tenant `default`, unless the system's states name one (`Endpoint.tenant_field`).
"""

import hashlib
import re
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import Field, PositiveInt, StringConstraints

from loadmaster.envs.settings import Settings

DEFAULT_TENANT = "default"
TENANT_PATTERN = r"^[A-Za-z0-9._-]{1,64}$"
TENANT_EXPECTED = "expected 1 to 64 letters, digits, dots, hyphens or underscores"

TenantName = Annotated[str, StringConstraints(pattern=TENANT_PATTERN)]
TENANT_FIELD: Any = Field(
    default=DEFAULT_TENANT, description="cluster or application that the request belongs to"
)


def is_tenant(name: str) -> bool:
    """Whether a text is a valid name of a tenant, known or not."""
    return re.fullmatch(TENANT_PATTERN.strip("^$"), name) is not None


def tenant_of(name: str) -> str:
    """The tenant that has the name of an application: the same if that is valid.

    Else invalid characters become dots, and a digest distinguishes it: "shop/cart" is
    "shop.cart-" and eight digits.
    """
    if is_tenant(name):
        return name
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9._-]', '.', name)[:55]}-{digest}"


class TenantSettings(Settings):
    """Bounds of what is kept of tenants, by system."""

    # In memory; the least recently used are written to disk, and read when they return.
    most: PositiveInt = 1000
    memory_bytes: PositiveInt = 256 << 20  # of the tenants in memory, estimated
    disk_bytes: int = Field(default=256 << 20, ge=1 << 20)  # the least recently used are deleted


class TenantForbiddenError(Exception):
    """The client may not use the tenant. The message is the same whether it exists or not."""


class TenantAccess:
    """The tenants that a client may use; None: all of them, and the system as a whole."""

    def __init__(self, tenants: Iterable[str] | None = None) -> None:
        self.tenants = None if tenants is None else tuple(dict.fromkeys(tenants))

    def require(self, tenant: str) -> None:
        if self.tenants is not None and tenant not in self.tenants:
            raise TenantForbiddenError("the token may not use this tenant; expected one of its own")

    def require_all(self) -> None:
        if self.tenants is not None:
            raise TenantForbiddenError("the token is limited to tenants; expected one that is not")

    @property
    def first(self) -> str:
        """The tenant of a request that names none and reads only."""
        return DEFAULT_TENANT if self.tenants is None else self.tenants[0]


ALL_TENANTS = TenantAccess()
