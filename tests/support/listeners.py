"""What a process and all its descendants listen on, as the kernel says."""

from __future__ import annotations

import ipaddress

import psutil


def family(pid: int) -> list[psutil.Process]:
    """A process and its descendants. Not by environment: Ray's processes overwrite theirs with their titles."""
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.Error:
        return []


def listeners(pid: int) -> dict[tuple[str, int], str]:
    """Where they listen, by (address, port), each with the title of its process. A datagram socket without a peer counts."""
    found = {}
    for process in family(pid):
        try:
            title = " ".join(process.cmdline())[:80].strip()
            for one in process.net_connections("inet"):
                if one.laddr and (one.status == psutil.CONN_LISTEN or (one.type == 2 and not one.raddr)):
                    found[one.laddr.ip, one.laddr.port] = title
        except psutil.Error:  # it has just ended
            continue
    return found


def is_local(address: str) -> bool:
    """Whether only this machine reaches an address; one of IPv4 may be written as IPv6."""
    parsed = ipaddress.ip_address(address)
    return (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback
