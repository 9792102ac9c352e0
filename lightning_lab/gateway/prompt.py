"""A request → the ids that the model reads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lightning_lab.gateway.errors import Fault, bad_request
from lightning_lab.gateway.ledger import Entry, Ledger
from lightning_lab.gateway.protocols.fields import image_place
from lightning_lab.gateway.protocols.wire import Request
from lightning_lab.gateway.stitch import Stitched, stitched
from lightning_lab.policy.base import Policy, PolicyError, has_engine
from lightning_lab.records import Ids

_log = logging.getLogger(__name__)

_INLINE_BODY = 64 * 1024
"""Requests up to this many bytes are rendered on the event loop; longer ones in a thread, so that nobody waits."""


NO_IDS: Ids = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """What the model reads, and where it comes from."""

    rendered: Ids
    """As the template wrote it, shape [n]."""
    ids: Ids
    """With sampled ids put back, shape [m]."""
    turns: Sequence[Entry] = ()
    """The calls that said its assistant messages, in order; the call continues the last of them."""
    kept: int = 0
    """As in `Stitched`."""
    left: tuple[str, ...] = ()


async def prompt_of(policy: Policy, request: Request, size: int, ledger: Ledger, *, stitching: bool) -> Prompt:
    """Render a conversation and put back what was sampled in it; ``size`` is the request's, in bytes.

    Raises `RenderError`, `PolicyError`, and `Fault` 400 for raw text that the policy cannot read.
    """
    if request.prompt is not None:
        ids = request.prompt if not isinstance(request.prompt, str) else _encode(policy, request.prompt)
        return Prompt(ids, ids)
    if any(message.images for message in request.messages):
        raise _no_images(policy, request)
    turns = ledger.turns(request.messages, request.signatures)
    if size <= _INLINE_BODY and not has_engine(policy):
        return _render(policy, request, turns, stitching)
    return await asyncio.to_thread(_render, policy, request, turns, stitching)


def _render(policy: Policy, request: Request, turns: Sequence[Entry], stitching: bool) -> Prompt:
    with PolicyDuty("render a conversation"):
        rendered = policy.render(request.messages, request.tools).ids
        made = stitched(rendered, turns, policy.decode) if turns and stitching else Stitched(rendered)
        return Prompt(rendered, made.ids, turns, made.kept, made.left)


def _encode(policy: Policy, text: str) -> Ids:
    encode = getattr(policy, "encode", None)  # text → ids; not every policy reads text without a conversation
    if encode is None:
        raise bad_request(
            f"Policy {policy.name!r} reads conversations, not raw text. "
            "Use chat completions, or send the prompt as token ids.",
            param="prompt",
            code="unsupported_parameter",
        )
    with PolicyDuty("encode a prompt"):
        ids: Ids = encode(text)
        return ids


def _no_images(policy: Policy, request: Request) -> Fault:
    param = next(
        (place for key in ("messages", "input") if (place := image_place(request.body.get(key), key))), "messages"
    )
    return bad_request(
        f"{param} is an image, which cannot be given to a text model: policy {policy.name!r} reads text. "
        "Send text, or let the lab ask a server whose model sees images (Policy.openai).",
        param=param,
        code="unsupported_content",
    )


class PolicyDuty:
    """Whatever a policy raises inside is a `PolicyError`: the agent is not to blame."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, PolicyError | Fault):
            return
        _log.error("The policy failed to %s", self._what, exc_info=error)
        raise PolicyError(f"The policy failed to {self._what}: {type(error).__name__}: {error}") from error
