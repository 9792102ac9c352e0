"""What can go wrong at the gateway: `GatewayError` for the lab, `Fault` for the client."""

from __future__ import annotations

from lightning_lab.policy.base import ContextOverflowError, PolicyError, PromptError, RefusedError, RenderError


class GatewayError(RuntimeError):
    """The gateway itself cannot do what the lab asked; the message says why and what to do."""


class Fault(Exception):  # noqa: N818 - an answer to a client, not an error of ours
    """An answer other than the reply; every wire protocol writes it in its own shape.

    ``status`` is the HTTP status, ``type`` and ``code`` are OpenAI's words, ``param`` names the field to blame.
    ``retry`` says whether the same request may succeed later (clients read ``x-should-retry``).
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry: bool = False,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.type = _TYPES.get(status, "invalid_request_error")
        self.param = param
        self.retry = retry
        self.headers = headers


_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    500: "server_error",
    503: "server_error",
}


def bad_request(message: str, *, param: str | None = None, code: str = "invalid_value") -> Fault:
    """The request's shape is wrong: HTTP 400, and ``param`` says where."""
    return Fault(400, code, message, param=param)


class ClientGoneError(ConnectionError):
    """The client has disconnected; nobody reads an answer."""


def as_fault(error: BaseException) -> Fault:
    """The answer that tells a client about ``error``."""
    if isinstance(error, Fault):
        return error
    if isinstance(error, ContextOverflowError):
        return Fault(400, "context_length_exceeded", str(error), param="messages")
    if isinstance(error, PromptError):
        return Fault(400, "invalid_value", str(error), param="prompt")
    if isinstance(error, RenderError):
        return Fault(400, "render_error", str(error), param="messages")
    if isinstance(error, RefusedError):
        return Fault(400, "refused", str(error))
    if isinstance(error, PolicyError):
        return Fault(500, "policy_error", str(error))
    return Fault(500, "internal_error", f"The gateway failed: {type(error).__name__}: {error}")
