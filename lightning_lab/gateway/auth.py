"""Who is calling: one key per rollout attempt, and what a request says about itself must agree with it."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from lightning_lab.gateway.errors import Fault
from lightning_lab.records import Sampling

ROLLOUT_HEADER = b"x-lightning-lab-rollout"
_KEY_HEADERS = (b"x-api-key", b"api-key")
_LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]", "::1"})
_ANYWHERE = frozenset({"0.0.0.0", "::"})


@dataclass(frozen=True, slots=True)
class Access:
    """How an agent reaches the model: the base URL (append ``/v1`` for OpenAI clients) and the key."""

    url: str
    key: str


class Grant:
    """What one rollout attempt may do while it runs: call the model, as itself."""

    __slots__ = ("attempt", "digest", "in_use", "next_ordinal", "open", "rollout_id", "sampling", "tampered")

    def __init__(
        self, rollout_id: str, attempt: int, digest: bytes, sampling: Sampling | None, next_ordinal: int = 0
    ) -> None:
        self.rollout_id = rollout_id
        self.attempt = attempt
        self.digest = digest
        """SHA-256 of the key; the key itself is kept nowhere."""
        self.sampling = sampling
        self.open = True
        self.in_use = 0
        """Requests that were attributed to it and have not ended yet."""
        self.next_ordinal = next_ordinal
        """How many calls the rollout has made, earlier attempts included. Belongs to the gateway's event loop."""
        self.tampered = 0
        """How often its key was used for what it does not open (`tamper`)."""


class Grants:
    """All keys that were ever given out by this gateway. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._by_rollout: dict[str, Grant] = {}
        self._by_digest: dict[bytes, Grant] = {}

    def issue(self, rollout_id: str, attempt: int, sampling: Sampling | None) -> str:
        """A new key for the rollout. An earlier attempt's key stops working."""
        key = "ll-" + secrets.token_urlsafe(32)
        with self._changed:
            earlier = self._revoke(rollout_id)
            ordinal = earlier.next_ordinal if earlier else 0
            grant = Grant(rollout_id, attempt, _digest(key.encode()), sampling, ordinal)
            self._by_rollout[rollout_id] = self._by_digest[grant.digest] = grant
        return key

    def revoke(self, rollout_id: str) -> Grant | None:
        """End the rollout's credential. Returns its grant, or None if there never was one."""
        with self._changed:
            return self._revoke(rollout_id)

    def acquire(self, *, path_id: str | None, headers: Iterable[tuple[bytes, bytes]]) -> Grant:
        """The grant that a request may use, marked in use: give it back with `release`.

        Raises `Fault` 401 (no or unknown key), 403 (another rollout's key, or attributions that disagree),
        404 (unknown rollout), 409 (the rollout has ended).
        """
        keys, named = _credentials(headers)
        claimed = [name for name in (path_id, *named) if name is not None]
        with self._changed:
            grant = self._by_key(keys)
            for rollout_id in claimed:
                self._check_claim(rollout_id, grant)
            if grant is None:
                raise Fault(401, "invalid_api_key", _no_key_message(bool(keys)))
            if not grant.open:
                raise rollout_finished(grant.rollout_id)
            grant.in_use += 1
            return grant

    def owner(self, headers: Iterable[tuple[bytes, bytes]]) -> Grant | None:
        """Whose key a request carries, also after the rollout's end; None unless all its keys were given out here."""
        keys, _ = _credentials(headers)
        with self._changed:
            found = [self._by_digest.get(_digest(key)) for key in keys]
        return found[0] if found and None not in found else None

    def release(self, grant: Grant) -> None:
        """The request has ended."""
        with self._changed:
            grant.in_use -= 1
            if not grant.in_use:
                self._changed.notify_all()

    def wait_unused(self, grant: Grant, timeout_s: float) -> bool:
        """Block until no request uses the grant; False when the time is over first."""
        with self._changed:
            return self._changed.wait_for(lambda: grant.in_use == 0, timeout_s)

    def _revoke(self, rollout_id: str) -> Grant | None:
        grant = self._by_rollout.get(rollout_id)
        if grant is not None:
            grant.open = False
        return grant

    def _by_key(self, keys: list[bytes]) -> Grant | None:
        if not keys:
            return None
        digest = _digest(keys[0])
        if any(not hmac.compare_digest(digest, _digest(key)) for key in keys[1:]):
            raise Fault(403, "attribution_conflict", "The request carries two different API keys; send one.")
        # A digest as dictionary key leaks nothing by timing: the caller cannot steer the digest towards a stored one.
        grant = self._by_digest.get(digest)
        return grant if grant is not None and hmac.compare_digest(grant.digest, digest) else None

    def _check_claim(self, rollout_id: str, grant: Grant | None) -> None:
        known = self._by_rollout.get(rollout_id)
        if known is None:
            raise Fault(404, "rollout_not_found", f"There is no rollout {rollout_id!r} at this gateway.")
        if grant is not None and grant.rollout_id != rollout_id:
            raise Fault(
                403,
                "attribution_conflict",
                f"The API key does not belong to rollout {rollout_id!r}; "
                "path, key and header must name the same rollout.",
            )


def check_host(headers: Iterable[tuple[bytes, bytes]], served: frozenset[str]) -> None:
    """Refuse foreign Host headers, so that a web page cannot reach the gateway by rebinding its name (DNS).

    Bound to every address of the machine, it may be called by any address: one cannot be rebound.
    """
    hosts = [_host_name(value) for name, value in headers if name == b"host"]
    known = len(hosts) == 1 and (hosts[0] in served or (bool(served & _ANYWHERE) and _is_address(hosts[0])))
    if not known:
        raise Fault(403, "host_not_allowed", "The Host header names another machine; call the gateway by its own URL.")


def served_hosts(host: str) -> frozenset[str]:
    """The names under which a gateway bound to ``host`` may be called."""
    return _LOOPBACK_NAMES | {host.lower()}


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _host_name(value: bytes) -> str:
    text = value.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text.partition("]")[0] + "]"
    return text.partition(":")[0]


def _credentials(headers: Iterable[tuple[bytes, bytes]]) -> tuple[list[bytes], list[str]]:
    """The API keys and the rollout ids that the headers carry."""
    keys: list[bytes] = []
    named: list[str] = []
    for name, value in headers:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            keys.append(key.strip() if scheme.lower() == b"bearer" else value)
        elif name in _KEY_HEADERS:
            keys.append(value.strip())
        elif name == ROLLOUT_HEADER:
            named.append(value.decode("latin-1").strip())
    return keys, named


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _no_key_message(given: bool) -> str:
    what = "The API key is not valid here." if given else "There is no API key in the request."
    return what + " Use the key that the lab gave to this rollout (OPENAI_API_KEY in the agent's environment)."


def rollout_finished(rollout_id: str) -> Fault:
    """The answer to whoever calls for a rollout that has ended."""
    return Fault(409, "rollout_finished", f"Rollout {rollout_id!r} has ended; its credential no longer works.")
