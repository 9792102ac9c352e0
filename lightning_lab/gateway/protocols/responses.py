"""OpenAI Responses: requests and whole answers. The event stream is in `responses_stream`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_lab.gateway.errors import Fault, bad_request
from lightning_lab.gateway.protocols import fields
from lightning_lab.gateway.protocols.responses_items import read_items
from lightning_lab.gateway.protocols.responses_stream import ResponsesStream, envelope, output_items
from lightning_lab.gateway.protocols.responses_tools import read_tools
from lightning_lab.gateway.protocols.wire import Choice, Head, Request, error_body
from lightning_lab.records import Message

SAMPLING_FIELDS: dict[str, type] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "max_output_tokens": int,
    "seed": int,
    "stop": object,
}
_KNOWN = frozenset(SAMPLING_FIELDS) | {"model", "input", "instructions", "tools", "stream", "stream_options"}
_STATEFUL = ("previous_response_id", "conversation")


class Responses:
    """``POST /v1/responses``. Nothing is stored between requests: each carries its whole input."""

    name = "responses"
    answer_prefix = "resp_"
    tool_prefix = "call_"
    signs_reasoning = True
    parses_arguments = False

    def read(self, body: Mapping[str, Any]) -> Request:
        for field in _STATEFUL:
            if body.get(field) is not None:
                raise bad_request(
                    f"{field} is not supported: this gateway keeps no conversations. "
                    "Send the whole input with every request (store=False).",
                    param=field,
                    code="unsupported_parameter",
                )
        tools, noted = read_tools(body)
        messages, signatures, input_left_out = _conversation(body, noted.get("tools_flattened", []))
        extra = fields.rest(body, _KNOWN) | noted
        if input_left_out:
            extra["input_left_out"] = input_left_out
        return Request(
            model=fields.text(body, "model"),
            messages=messages,
            tools=tools,
            asked=fields.asked(body, SAMPLING_FIELDS),
            stop=fields.stops(body),
            max_tokens=fields.count(body, "max_output_tokens"),
            stream=fields.flag(body, "stream"),
            logprobs="message.output_text.logprobs" in fields.items(body, "include"),
            body=body,
            extra=extra,
            signatures=signatures,
        )

    def answer(self, head: Head, choices: Sequence[Choice]) -> dict[str, Any]:
        return envelope(head, output=output_items(head, choices[0]), choice=choices[0])

    def stream(self, head: Head) -> ResponsesStream:
        return ResponsesStream(head)

    def error(self, fault: Fault) -> dict[str, Any]:
        return error_body(fault)


def _conversation(
    body: Mapping[str, Any], flattened: list[dict[str, str]]
) -> tuple[tuple[Message, ...], dict[int, str], list[Any]]:
    """Instructions and input as messages, their signatures, and the input items that no message can say."""
    messages: list[Message] = []
    instructions = body.get("instructions")
    if instructions is not None:
        text = instructions if isinstance(instructions, str) else fields.content_text(instructions, "instructions")
        if text:
            messages.append(Message(role="system", content=text))
    said = body.get("input")
    if isinstance(said, str):
        return (*messages, Message(role="user", content=said)), {}, []
    items, signatures, left_out = read_items(fields.array(said, "input"), flattened)
    before = len(messages)
    messages += items
    if not messages:
        raise bad_request("input must not be empty.", param="input")
    return tuple(messages), {at + before: signature for at, signature in signatures.items()}, left_out
