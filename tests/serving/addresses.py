"""Network addresses of this machine."""

import ipaddress
import socket

import psutil


def other_addresses(family: socket.AddressFamily | None = None) -> list[str]:
    """All but 127.0.0.1. A server that listens on all interfaces can be reached at 127.0.0.2."""
    cards = [card for cards in psutil.net_if_addrs().values() for card in cards]
    inet = [card for card in cards if card.family in (socket.AF_INET, socket.AF_INET6)]
    found = [ipaddress.ip_address(card.address.partition("%")[0]) for card in inet]
    # Link-local addresses need a zone, and are as reachable as the others of the card.
    others = [str(one) for one in found if not (one.is_loopback or one.is_link_local)]
    return [one for one in ("127.0.0.2", *others) if family in (None, _family(one))]


def refuses(address: str, port: int) -> bool:
    """Whether a connection is refused; any other failure raises."""
    with socket.socket(_family(address)) as probe:
        probe.settimeout(5.0)
        try:
            probe.connect((address, port))
        except ConnectionRefusedError:
            return True
    return False


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
