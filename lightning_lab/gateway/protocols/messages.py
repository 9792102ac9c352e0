"""Anthropic Messages: requests and whole answers. The event stream is in `messages_stream`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_lab.gateway.errors import Fault, bad_request
from lightning_lab.gateway.protocols import fields
from lightning_lab.gateway.protocols.messages_blocks import failed_results, read_turns, system_text
from lightning_lab.gateway.protocols.messages_stream import MessagesStream, content_blocks, envelope, error_body
from lightning_lab.gateway.protocols.wire import Choice, Head, Request
from lightning_lab.records import Message

SAMPLING_FIELDS: dict[str, type] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "max_tokens": int,
    "stop_sequences": object,
}
_KNOWN = frozenset(SAMPLING_FIELDS) | {"model", "messages", "system", "tools", "stream"}


class Messages:
    """``POST /v1/messages``."""

    name = "messages"
    answer_prefix = "msg_"
    tool_prefix = "toolu_"
    signs_reasoning = True
    parses_arguments = True

    def read(self, body: Mapping[str, Any]) -> Request:
        said = fields.array(body.get("messages"), "messages")
        if not said:
            raise bad_request("messages must not be empty.", param="messages")
        system = system_text(body.get("system"))
        opening = (Message(role="system", content=system),) if system else ()
        turns, signatures = read_turns(said)
        tools, left_out = _tools(body)
        extra = fields.rest(body, _KNOWN)
        if left_out:
            extra["tools_left_out"] = left_out
        failed = failed_results(said)
        if failed:
            extra["tool_errors"] = failed
        return Request(
            model=fields.text(body, "model"),
            messages=(*opening, *turns),
            tools=tools,
            asked=fields.asked(body, SAMPLING_FIELDS),
            stop=fields.stops(body, "stop_sequences"),
            max_tokens=fields.count(body, "max_tokens"),
            stream=fields.flag(body, "stream"),
            body=body,
            extra=extra,
            signatures={at + len(opening): signature for at, signature in signatures.items()},
        )

    def answer(self, head: Head, choices: Sequence[Choice]) -> dict[str, Any]:
        return envelope(head, choices[0], content_blocks(head, choices[0].message))

    def stream(self, head: Head) -> MessagesStream:
        return MessagesStream(head)

    def error(self, fault: Fault) -> dict[str, Any]:
        return error_body(fault)


def _tools(body: Mapping[str, Any]) -> tuple[tuple[Mapping[str, Any], ...], list[Any]]:
    """The functions that a request offers in canonical form, and the tools that only a hosted model has."""
    tools: list[Mapping[str, Any]] = []
    left_out: list[Any] = []
    for at, value in enumerate(fields.items(body, "tools")):
        where = f"tools[{at}]"
        tool = fields.mapping(value, where)
        if fields.text(tool, "type", f"{where}.") in ("", "custom"):
            shape = {"name": tool.get("name"), "description": tool.get("description")}
            tools.append(fields.function_tool(shape | {"parameters": tool.get("input_schema")}, f"{where}."))
        else:
            left_out.append(tool)
    return tuple(tools), left_out
