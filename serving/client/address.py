"""Former place of `Address`: use `loadmaster.serving.client.http1`."""

from loadmaster.serving.client.http1 import TOKEN_VARIABLE, Address
from loadmaster.serving.client.http1 import parse_address as address

__all__ = ["TOKEN_VARIABLE", "Address", "address"]
