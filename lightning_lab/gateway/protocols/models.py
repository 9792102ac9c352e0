"""OpenAI models routes: any name is answered, because any name is accepted."""

from __future__ import annotations

from typing import Any


def model_list(policy_name: str) -> dict[str, Any]:
    """``GET /v1/models``."""
    return {"object": "list", "data": [model(policy_name)]}


def model(name: str) -> dict[str, Any]:
    """``GET /v1/models/{id}``."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "lightning-lab"}
