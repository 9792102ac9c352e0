"""Models routes: any name is answered, because any name is accepted."""

from __future__ import annotations

from typing import Any


def model_list(policy_name: str) -> dict[str, Any]:
    """``GET /v1/models``, as OpenAI's clients read it."""
    return {"object": "list", "data": [model(policy_name)]}


def model(name: str) -> dict[str, Any]:
    """``GET /v1/models/{id}``, as OpenAI's clients read it."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "lightning-lab"}


def claude_model_list(policy_name: str) -> dict[str, Any]:
    """``GET /v1/models``, as Anthropic's clients read it."""
    return {"data": [claude_model(policy_name)], "has_more": False, "first_id": policy_name, "last_id": policy_name}


def claude_model(name: str) -> dict[str, Any]:
    """``GET /v1/models/{id}``, as Anthropic's clients read it."""
    return {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
