"""The doctor's look at the network: where the gateway is to listen, who reaches it there, and what stands between."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]

from lightning_lab.notebook.finding import Finding

_PROXIES = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
_ELSEWHERE = ("192.0.2.1", 9)
"""An address of the documentation's range: asking for the way there sends nothing."""


def proxies(environment: Mapping[str, str], hosts: Sequence[str] = ()) -> Finding:
    """Agents ask the gateway by address, and the kernel a cluster's head: a proxy in between would not find them."""
    found = [name for name in _PROXIES if environment.get(name)]
    if not found:
        return Finding(name="proxy", level="ok", said="no proxy variables")
    exempt = ",".join(filter(None, (environment.get(name) for name in ("NO_PROXY", "no_proxy"))))
    wanted = dict.fromkeys(("127.0.0.1", *hosts))
    missing = [host for host in wanted if not _bypassed(host, exempt)]
    if missing:
        said = f"{', '.join(found)} set, and NO_PROXY does not name {', '.join(missing)}: calls may go to the proxy"
        action = f"export NO_PROXY={','.join(dict.fromkeys((*wanted, 'localhost')))}"
        return Finding(name="proxy", level="problem", said=said, action=action)
    return Finding(name="proxy", level="ok", said=f"{', '.join(found)} set, with {', '.join(wanted)} exempt")


def gateway_address(host: str, port: int, *, elsewhere: bool) -> Finding:
    """Whether the gateway can listen there, and whether agents that run ``elsewhere``, in pods, could reach it."""
    try:
        taken = _refused(host, port)
    except OSError as error:
        action = f'Choose an address of this machine: ll.Lab(…, host="{own_address()}").'
        return Finding(
            name="gateway", level="problem", said=f"cannot listen on {host}: {error.strerror}", action=action
        )
    if taken:
        action = "Choose another port, or port=0 for a free one; `ss -ltnp` says who has it."
        return Finding(name="gateway", level="problem", said=f"port {port} of {host} is taken", action=action)
    where = f"{host}, port {port or 'any that is free'}"
    if not elsewhere:
        return Finding(name="gateway", level="ok", said=f"{where}; agents run on this machine")
    address = _address(host)
    if address is not None and (address.is_loopback or address.is_unspecified):
        said = f"{host} means another machine to agents that run elsewhere"
        action = (
            f'll.Lab(…, host="{own_address()}", port=8090), or, where pods reach this machine by another address: '
            'lab.kubernetes(gateway_url="http://…").'
        )
        return Finding(name="gateway", level="problem", said=said, action=action)
    if not port:
        action = "Choose a port that firewalls let through: ll.Lab(…, port=8090)."
        return Finding(name="gateway", level="note", said=f"{host}, another port each time", action=action)
    return Finding(name="gateway", level="ok", said=f"{where}; open it to the machines that run agents")


def own_address() -> str:
    """The address by which other machines most likely know this one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(_ELSEWHERE)
        except OSError:
            return "127.0.0.1"
        return str(asked.getsockname()[0])


def head_of(address: str) -> list[str]:
    """The host of a cluster's address; none for this machine."""
    host = urlsplit(address).hostname
    return [host] if host else []


def _refused(host: str, port: int) -> bool:
    """Whether somebody has the port. Raises `OSError` where this machine has no such address."""
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(place)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return True
            raise
    return False


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        return None


def _bypassed(host: str, exempt: str) -> bool:
    ranges = {"127.0.0.0/8"} if host.startswith("127.") else set()
    return bool(ranges.intersection(exempt.split(","))) or bool(proxy_bypass_environment(host, {"no": exempt}))
