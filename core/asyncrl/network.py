"""Where a run listens: on loopback unless `bind` says otherwise. Which address others reach it at, and which URLs it is given."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from asyncrl.errors import OptionError

LOOPBACK = "127.0.0.1"
EVERY_ADDRESS = "0.0.0.0"  # of its node
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def is_loopback(address: str) -> bool:
    """Whether nobody but processes of this machine reaches an address."""
    try:
        return address == "localhost" or ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def key_for(bind: str) -> str:
    """Return a new key that servers bound to an address must require; '' for loopback, where they require none."""
    return "" if is_loopback(bind) else secrets.token_hex(32)


def reached_at(bind: str, node: str) -> str:
    """Return the address at which what is bound to `bind` is reached by others.

    Args:
        node: of the machine, as Ray knows it: a private cluster knows only loopback.
    """
    if bind != EVERY_ADDRESS:
        return bind
    return _outward_address() if is_loopback(node) else node


def loopback_environment() -> dict[str, str]:
    """Return the variables that keep collectives on loopback, where the user has not chosen an interface; they take one by its name."""
    names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    return {variable: names[0] for variable in INTERFACE_VARIABLES if names and variable not in os.environ}


def checked_url(url: str, origin: str) -> str:
    """Return a server's URL without a slash at its end.

    Raises:
        OptionError: no paths can be put behind it, or it may hold a key, which logs and saved options would show; it is not quoted then.
    """
    if "@" in url or "?" in url or "#" in url:
        raise OptionError(
            "what holds an @, ? or # is no address of a server",
            origin=origin,
            remedy="end it before that; a key is given as api_key",
        )
    try:
        parts = urlsplit(url)
        right = parts.port is None or parts.port > 0
    except ValueError:
        right = False
    if not right or parts.scheme not in ("http", "https") or not parts.hostname or any(map(str.isspace, url)):
        raise OptionError(f"{url!r} is no address of a server", origin=origin, remedy="such as http://10.0.0.7:30000")
    return url.rstrip("/")


def require_reachable(bind: str, urls: Sequence[str]) -> None:
    """Refuse engines on other machines for a trainer that only this one reaches.

    Args:
        bind: where the trainer listens.
        urls: of the engines.

    Raises:
        OptionError: names the first of them.
    """
    for url in urls if is_loopback(bind) else ():
        if not is_loopback(urlsplit(url).hostname or ""):
            raise OptionError(
                f"the engine at {url} can't reach the trainer at {bind}, which broadcasts weights to it",
                origin="bind, publish_method",
                remedy="use --bind 0.0.0.0, or publish by disk",
            )


def _outward_address() -> str:
    """This machine's own address towards others. Nothing is sent: connecting a datagram socket only looks the route up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address kept for documentation
            address: str = probe.getsockname()[0]
        except OSError:
            return LOOPBACK
    return address
