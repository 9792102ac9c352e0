"""Where a call stands among the calls of its rollout: its thread and its kind.

Threads are told by headers where a harness sends them, else by the replies that a request echoes, else by its system
text and tools: a fresh context of the same agent has the same. Kinds: ``main``, ``sub_agent``, ``side`` (titles and
the like), ``compaction`` (a conversation is summarised).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lightning_lab.gateway.ledger import Entry
from lightning_lab.gateway.protocols.wire import Request
from lightning_lab.records import Message

_AGENT = b"x-claude-code-agent-id"
_SUB_AGENT_KIND = b"x-openai-subagent"
_THREADS = (b"thread-id", b"x-claude-code-session-id", b"x-session-id", b"x-litellm-session-id")
_PARENTS = (b"x-codex-parent-thread-id", b"x-parent-session-id")
_RETRY = b"x-stainless-retry-count"
_READ = frozenset({_AGENT, _SUB_AGENT_KIND, _RETRY, *_THREADS, *_PARENTS})
_COMPACTION_KINDS = ("compact", "compaction")

_TALK = r"(?:conversation|session|chat|thread|history|context)"
_TITLE = re.compile(
    rf"title generator|\b(?:title|topic|summar\w+)\b[^.\n]{{0,80}}\b{_TALK}\b"
    rf"|\b{_TALK}\b[^.\n]{{0,80}}\b(?:title|topic)\b"
)
_SUMMARY = re.compile(
    rf"context checkpoint|state_snapshot|\b(?:summar\w+|compact\w*|condens\w+|hand-?off)\b[^.\n]{{0,120}}"
    rf"\b(?:{_TALK}|so far|progress)\b|\bcontinu\w+ (?:our|the|this) conversation\b"
)
_WORDS = ("title", "topic", "summar", "checkpoint", "snapshot", "compact", "condens", "hand", "continu")
"""One of them is in every such instruction: most messages need no search."""
_OPENING = 600
"""Characters in which an instruction shows itself."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a request's headers say about the agent that sent it."""

    thread: str = ""
    sub_agent: bool = False
    compaction: bool = False
    retry: bool = False
    """The client says that it sent the same request before."""


_UNKNOWN = Identity()


def identity(headers: Iterable[tuple[bytes, bytes]]) -> Identity:
    """Reads the headers of Codex, Claude Code, OpenCode, OpenHands and the OpenAI and Anthropic SDKs."""
    found = {name: value.decode("latin-1").strip() for name, value in headers if name in _READ}
    if not found:
        return _UNKNOWN
    agent, kind = found.get(_AGENT, ""), found.get(_SUB_AGENT_KIND, "").lower()
    compaction = kind in _COMPACTION_KINDS
    parent = any(found.get(name) for name in _PARENTS)
    return Identity(
        thread=agent or next((found[name] for name in _THREADS if found.get(name)), ""),
        sub_agent=bool(agent or parent or (kind and not compaction)),
        compaction=compaction,
        retry=found.get(_RETRY, "0") not in ("", "0"),
    )


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call stands."""

    thread: str
    role: str
    """``main``, ``sub_agent`` or ``side``: what calls that continue this one are."""
    kind: str


class CallTree:
    """The threads of one rollout attempt. Only on the event loop."""

    def __init__(self) -> None:
        self._named: dict[str, str] = {}
        self._known: dict[int, tuple[str, str]] = {}
        self._main_tools = False

    def place(self, who: Identity, request: Request, turns: Sequence[Entry]) -> Place:
        """The call's place; ``turns`` are the calls that its conversation echoes."""
        if who.compaction or _asks_for_summary(request):
            thread, role = self._thread(who, request, turns)
            return Place(thread, role, "compaction")
        if not turns and _asks_for_title(request):
            return Place(self._named.get(who.thread, "side"), "side", "side")
        thread, role = self._thread(who, request, turns)
        self._main_tools = self._main_tools or (role == "main" and bool(request.tools))
        return Place(thread, role, role)

    def _thread(self, who: Identity, request: Request, turns: Sequence[Entry]) -> tuple[str, str]:
        if who.thread:
            return self._named_thread(who), "sub_agent" if who.sub_agent else "main"
        if turns:
            return turns[-1].thread, turns[-1].kind
        agent = _agent(request)
        if agent not in self._known:
            self._known[agent] = self._new(who, request)
        return self._known[agent]

    def _named_thread(self, who: Identity) -> str:
        if who.thread not in self._named:
            first = not who.sub_agent and "main" not in self._named.values()
            self._named[who.thread] = "main" if first else who.thread
        return self._named[who.thread]

    def _new(self, who: Identity, request: Request) -> tuple[str, str]:
        """An agent that was not seen before: a call without tools beside a main agent with tools is no agent."""
        if not who.sub_agent and "main" not in (thread for thread, _ in self._known.values()):
            return "main", "main"
        role = "side" if self._main_tools and not request.tools else "sub_agent"
        return f"{role.removeprefix('sub_')}-{len(self._known)}", role


def _agent(request: Request) -> int:
    system = tuple(message.content for message in request.messages if message.role == "system")
    return hash((system, tuple(tool["function"]["name"] for tool in request.tools)))


def _asks_for_title(request: Request) -> bool:
    if request.tools or any(message.role == "assistant" for message in request.messages):
        return False
    return any(_speaks_of(_TITLE, message) for message in request.messages)


def _asks_for_summary(request: Request) -> bool:
    """The last message asks to summarise what the model and the harness said before it."""
    if len(request.messages) < 3 or request.messages[-1].role != "user":
        return False
    said = any(message.role == "assistant" for message in request.messages)
    return said and _speaks_of(_SUMMARY, request.messages[-1])


def _speaks_of(pattern: re.Pattern[str], message: Message) -> bool:
    """Whether the message begins with such an instruction; what follows may be any text."""
    opening = message.content[:_OPENING].lower()
    for word in _WORDS:
        if word in opening:
            return pattern.search(opening) is not None
    return False
