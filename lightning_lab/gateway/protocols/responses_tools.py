"""OpenAI Responses: the tools that a request offers.

Namespaces are flattened: the model sees their functions by plain name, and a call of one goes out with its namespace.
Tools that only a hosted model has (``web_search`` …) are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lightning_lab.gateway.protocols import fields


def read_tools(body: Mapping[str, Any]) -> tuple[tuple[Mapping[str, Any], ...], dict[str, Any]]:
    """Functions in canonical form, and what is to be recorded of the rest. Raises `Fault` 400."""
    tools: dict[str, Mapping[str, Any]] = {}
    left_out: list[Any] = []
    flattened: list[dict[str, str]] = []
    for tool, where, space in _walk(body):
        if fields.text(tool, "type", f"{where}.") not in ("function", ""):
            left_out.append(tool)
            continue
        function = fields.function_tool(tool, f"{where}.")
        name = function["function"]["name"]
        as_shown = f"{space}__{name}" if space and name in tools else name
        if space:
            flattened.append({"namespace": space, "name": name, "shown": as_shown})
        tools[as_shown] = {**function, "function": {**function["function"], "name": as_shown}}
    noted = {"tools_left_out": left_out, "tools_flattened": flattened}
    return tuple(tools.values()), {key: value for key, value in noted.items() if value}


def called(name: str, flattened: list[dict[str, str]]) -> dict[str, str]:
    """How a client knows the function that the model called: by its name, and its namespace if it has one."""
    for one in flattened:
        if one["shown"] == name:
            return {"name": one["name"], "namespace": one["namespace"]}
    return {"name": name}


def shown(item: Mapping[str, Any], flattened: list[dict[str, str]], where: str) -> str:
    """How the model knows the function that an item calls. Raises `Fault` 400."""
    name, space = fields.text(item, "name", where), fields.text(item, "namespace", where)
    for one in flattened if space else ():
        if (one["namespace"], one["name"]) == (space, name):
            return one["shown"]
    return name


def _walk(body: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str, str]]:
    """Every tool, where it stands, and its namespace."""
    for at, value in enumerate(fields.items(body, "tools")):
        where = f"tools[{at}]"
        tool = fields.mapping(value, where)
        if tool.get("type") != "namespace":
            yield tool, where, ""
            continue
        space = fields.text(tool, "name", f"{where}.")
        for place, inner in enumerate(fields.items(tool, "tools", f"{where}.")):
            yield fields.mapping(inner, f"{where}.tools[{place}]"), f"{where}.tools[{place}]", space
