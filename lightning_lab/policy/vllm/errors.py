"""What can go wrong with a vLLM server, and what its own words mean."""

from __future__ import annotations

import re

from lightning_lab.policy.base import PolicyError

_SHOWN_LINES = 12
"""Lines of a server's log that an error repeats where it has no better words."""


class EngineStartError(PolicyError):
    """A vLLM server could not be started."""


class EngineMemoryError(EngineStartError):
    """There is not enough memory for the model with its context."""


class ToolParserError(EngineStartError):
    """vLLM has no tool or reasoning parser of this name."""


class SocketTakenError(EngineStartError):
    """Another program listens where the server should."""


class EngineDiedError(PolicyError):
    """A vLLM server ended, or its answer broke off."""


class PublishError(PolicyError):
    """New weights did not reach the servers; the earlier version samples on."""


_PARSER = re.compile(
    r"(?:invalid )?(tool call|tool|reasoning) parser:? '?([\w-]+)'?.*?(?:chose from|registered|found)", re.I
)
_MEMORY = re.compile(
    r"out of memory|OutOfMemory|KV cache (?:is )?needed, which is larger|No available memory for the cache"
    r"|Cannot allocate memory|can't allocate memory|Free memory on device|not enough memory|MemoryError|bad_alloc"
    r"|is less than (?:requested|desired)[^\n]*memory|exceeds? (?:the )?(?:available|total|free) memory",
    re.IGNORECASE,
)
_TAKEN = re.compile(r"Address already in use", re.I)


def start_error(name: str, log: str, status: int | None) -> EngineStartError:
    """Why a server did not start, from the end of its log; ``status``: its exit status, None while it still runs."""
    how = "did not answer in time" if status is None else f"ended with {status} while it started"
    said = last_error(log)
    if found := _PARSER.search(log):
        return ToolParserError(f"vLLM knows no {found[1].lower()} parser {found[2]!r}. Use a name of its own: {said}")
    if _TAKEN.search(log):
        return SocketTakenError(f"Another program listens on the socket of {name}. End it, then try again. {said}")
    if status == -9 or _MEMORY.search(log):
        return EngineMemoryError(
            f"There is not enough memory for {name}: {said} Lower context_length or kv_bytes, or use a smaller dtype "
            "or model."
        )
    return EngineStartError(f"{name} {how}: {said}")


def last_error(log: str) -> str:
    """The line that names the error, the last one that does; else the end of the log."""
    lines = [_without_prefix(line) for line in log.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"(?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt): .", line)]
    telling = [line for line in named if not line.startswith("RuntimeError: Engine core initialization failed")]
    if telling or named:
        return _sentence((telling or named)[-1])
    return "its last words were:\n" + "\n".join(lines[-_SHOWN_LINES:])


def _without_prefix(line: str) -> str:
    """vLLM's processes write ``(EngineCore pid=1) ERROR 11-29 21:47:39 [core.py:1]`` before what they say."""
    line = re.sub(r"^\([^)]*pid=\d+\) ", "", line)
    return re.sub(r"^(?:ERROR|WARNING|INFO|DEBUG) \d\d-\d\d [\d:]+ \[[^\]]*\] ?", "", line)


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text if text.endswith((".", "!", "?")) else text + "."
