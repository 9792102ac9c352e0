"""Which cluster, and how the lab uses it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit


class ClusterError(RuntimeError):
    """The cluster cannot be used like this; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Plain settings. Raises `ClusterError` when the gateway's address is of no use to a pod."""

    gateway_url: str
    """``http://address:port`` at which pods reach the gateway. An IP address: a NetworkPolicy cannot name hosts."""
    namespace: str
    lab_id: str
    """Goes into a label: what carries it belongs to this lab, also after its kernel died and it was resumed."""
    kubeconfig: str | None = None
    """None: the user's own, or the pod's service account where there is none."""
    context: str | None = None
    start_limit_s: float = 300.0
    """Seconds in which a pod must have begun: being scheduled, pulling its image."""
    rate: float = 10.0
    """Changes per second that the API server is asked for at most."""
    relist_s: float = 60.0
    """How often everything is listed anew, whatever the watch said."""

    def __post_init__(self) -> None:
        address = self.gateway_address
        if address.is_loopback or address.is_unspecified:
            raise ClusterError(
                f"Pods cannot reach {self.gateway_url}: {address} means another machine there. Open the lab with "
                'Lab(…, host="<address of this machine>", port=8090), or say lab.kubernetes(gateway_url="http://…").'
            )

    @property
    def gateway_address(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        host = urlsplit(self.gateway_url).hostname or ""
        try:
            return ipaddress.ip_address(host)
        except ValueError:
            raise ClusterError(
                f"gateway_url is {self.gateway_url!r}; it needs an IP address, as in http://10.0.0.5:8090: "
                "the NetworkPolicy that closes every other way out of a pod cannot name hosts."
            ) from None

    @property
    def gateway_port(self) -> int:
        parts = urlsplit(self.gateway_url)
        return parts.port or (443 if parts.scheme == "https" else 80)
