"""OpenAI Chat Completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_lab.gateway.errors import Fault, bad_request
from lightning_lab.gateway.protocols import fields
from lightning_lab.gateway.protocols.wire import (
    Choice,
    Head,
    Request,
    Told,
    data_event,
    error_body,
    pieces,
    shown_logprob,
)
from lightning_lab.records import Message

SAMPLING_FIELDS: dict[str, type] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "max_tokens": int,
    "max_completion_tokens": int,
    "frequency_penalty": float,
    "presence_penalty": float,
    "repetition_penalty": float,
    "seed": int,
    "n": int,
    "stop": object,
    "logit_bias": object,
}
_KNOWN = frozenset(SAMPLING_FIELDS) | {
    "model", "messages", "tools", "functions", "stream", "stream_options", "logprobs", "top_logprobs",
}  # fmt: skip
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


class Chat:
    """``POST /v1/chat/completions``."""

    name = "chat"
    answer_prefix = "chatcmpl-"
    tool_prefix = "call_"
    signs_reasoning = False
    parses_arguments = False

    def read(self, body: Mapping[str, Any]) -> Request:
        messages = fields.array(body.get("messages"), "messages")
        if not messages:
            raise bad_request("messages must not be empty.", param="messages")
        tools, left_out = read_tools(body)
        extra = fields.rest(body, _KNOWN)
        if left_out:
            extra["tools_left_out"] = left_out
        options = fields.options(body, "stream_options")
        return Request(
            model=fields.text(body, "model"),
            messages=tuple(_message(message, f"messages[{at}]") for at, message in enumerate(messages)),
            tools=tools,
            asked=fields.asked(body, SAMPLING_FIELDS),
            stop=fields.stops(body),
            max_tokens=most_tokens(body),
            n=fields.count(body, "n", most=128) or 1,
            stream=fields.flag(body, "stream"),
            include_usage=fields.flag(options, "include_usage"),
            logprobs=fields.flag(body, "logprobs"),
            body=body,
            extra=extra,
        )

    def answer(self, head: Head, choices: Sequence[Choice]) -> dict[str, Any]:
        return {
            "id": head.id,
            "object": "chat.completion",
            "created": head.created,
            "model": head.model,
            "choices": [
                {
                    "index": index,
                    "message": _reply(choice.message),
                    "logprobs": _logprobs(choice) if head.request.logprobs else None,
                    "finish_reason": _finish_reason(choice),
                }
                for index, choice in enumerate(choices)
            ],
            "usage": usage(head, choices),
        }

    def stream(self, head: Head) -> ChatStream:
        return ChatStream(head)

    def error(self, fault: Fault) -> dict[str, Any]:
        return error_body(fault)


class ChatStream:
    """Chunks of one answer, ended by ``[DONE]``."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._told = Told()

    def opening(self) -> bytes:
        delta = {"role": "assistant", "content": ""}
        return b"".join(self._chunk(index, delta) for index in range(self._head.request.n))

    def beat(self) -> bytes:
        return self._chunk(0, {})  # not a comment: clients that time the chunks (qwen-code) do not see those

    def progress(self, sure: Message) -> bytes:
        return b"".join(self._texts(0, sure))

    def closing(self, choices: Sequence[Choice]) -> bytes:
        out: list[bytes] = []
        for index, choice in enumerate(choices):
            out += self._choice(index, choice)
        if self._head.request.include_usage:
            out.append(data_event(self._envelope([]) | {"usage": usage(self._head, choices)}))
        out.append(b"data: [DONE]\n\n")
        return b"".join(out)

    def failure(self, fault: Fault) -> bytes:
        return data_event(error_body(fault))

    def _choice(self, index: int, choice: Choice) -> list[bytes]:
        message = choice.message
        out = self._texts(index, message)
        for place, call in enumerate(message.tool_calls):
            head = {"index": place, "id": call["id"], "type": "function"}
            out.append(self._tool_delta(index, head | {"function": {"name": call["name"], "arguments": ""}}))
            for piece in pieces(call["arguments"]):
                out.append(self._tool_delta(index, {"index": place, "function": {"arguments": piece}}))
        logprobs = _logprobs(choice) if self._head.request.logprobs else None
        out.append(self._chunk(index, {}, finish_reason=_finish_reason(choice), logprobs=logprobs))
        return out

    def _texts(self, index: int, message: Message) -> list[bytes]:
        fields = {"reasoning_content": message.reasoning, "content": message.content}
        return [
            self._chunk(index, {name: piece})
            for name, text in fields.items()
            for piece in self._told.more((index, name), text)
        ]

    def _tool_delta(self, index: int, call: Mapping[str, Any]) -> bytes:
        return self._chunk(index, {"tool_calls": [call]})

    def _chunk(
        self,
        index: int,
        delta: Mapping[str, Any],
        *,
        finish_reason: str | None = None,
        logprobs: Mapping[str, Any] | None = None,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return data_event(self._envelope([choice]))

    def _envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = self._head
        return {
            "id": head.id,
            "object": "chat.completion.chunk",
            "created": head.created,
            "model": head.model,
            "choices": choices,
        }


def most_tokens(body: Mapping[str, Any]) -> int | None:
    """How long the reply may be, under either name; both are checked."""
    newer, older = (fields.count(body, name) for name in ("max_completion_tokens", "max_tokens"))
    return newer or older


def usage(head: Head, choices: Sequence[Choice]) -> dict[str, int]:
    """Token counts of one answer; a prompt counts once, however many choices it has."""
    sampled = sum(choice.sampled_tokens for choice in choices)
    return {
        "prompt_tokens": head.prompt_tokens,
        "completion_tokens": sampled,
        "total_tokens": head.prompt_tokens + sampled,
    }


def read_tools(body: Mapping[str, Any]) -> tuple[tuple[Mapping[str, Any], ...], list[Any]]:
    """The functions that a request offers, and the tools of other kinds."""
    tools: list[Mapping[str, Any]] = []
    left_out: list[Any] = []
    for at, tool in enumerate(fields.items(body, "tools")):
        where = f"tools[{at}]"
        if fields.text(fields.mapping(tool, where), "type", f"{where}.") in ("function", ""):
            function = fields.mapping(tool.get("function"), f"{where}.function")
            tools.append(fields.function_tool(function, f"{where}.function."))
        else:
            left_out.append(tool)
    for at, function in enumerate(fields.items(body, "functions")):
        tools.append(fields.function_tool(fields.mapping(function, f"functions[{at}]"), f"functions[{at}]."))
    return tuple(tools), left_out


def _message(value: Any, param: str) -> Message:
    message, where = fields.mapping(value, param), f"{param}."
    role = ROLES.get(fields.text(message, "role", where))
    if role is None:
        raise bad_request(f"{where}role must be one of {', '.join(ROLES)}.", param=f"{where}role")
    reasoning = fields.text(message, "reasoning_content", where) or fields.text(message, "reasoning", where)
    content, images = message_content(role, message.get("content"), f"{where}content")
    return Message(
        role=role,
        content=content,
        images=images,
        reasoning=reasoning if role == "assistant" else "",
        tool_calls=_tool_calls(message, where) if role == "assistant" else (),
        tool_call_id=fields.text(message, "tool_call_id", where),
        name=fields.text(message, "name", where),
    )


def message_content(role: str, value: Any, param: str) -> tuple[str, tuple[Mapping[str, Any], ...]]:
    """Text and images; images are for the model to see, so nobody but users and tools has any."""
    return fields.content(value, param) if role in ("user", "tool") else (fields.content_text(value, param), ())


def _tool_calls(message: Mapping[str, Any], where: str) -> tuple[Mapping[str, str], ...]:
    calls = fields.items(message, "tool_calls", where)
    found = [_tool_call(call, f"{where}tool_calls[{at}]") for at, call in enumerate(calls)]
    legacy = message.get("function_call")
    if legacy is not None:
        found.append(_tool_call({"function": legacy}, f"{where}function_call"))
    return tuple(found)


def _tool_call(value: Any, param: str) -> Mapping[str, str]:
    call = fields.mapping(value, param)
    kind = "custom" if call.get("type") == "custom" else "function"
    said = fields.mapping(call.get(kind), f"{param}.{kind}")
    where = f"{param}.{kind}."
    arguments = said.get("input" if kind == "custom" else "arguments")
    return {
        "id": fields.text(call, "id", f"{param}."),
        "name": fields.text(said, "name", where),
        "arguments": fields.arguments_text(arguments, f"{where}arguments"),
    }


def _reply(message: Message) -> dict[str, Any]:
    reply: dict[str, Any] = {"role": "assistant", "content": message.content or None, "refusal": None}
    if not message.tool_calls:
        reply["content"] = message.content
    else:
        reply["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
            for call in message.tool_calls
        ]
    if message.reasoning:
        reply["reasoning_content"] = message.reasoning
    return reply


def _finish_reason(choice: Choice) -> str:
    return "tool_calls" if choice.message.tool_calls and choice.finish_reason == "stop" else choice.finish_reason


def _logprobs(choice: Choice) -> dict[str, Any]:
    content = [
        {
            "token": text,
            "logprob": shown_logprob(logprob),
            "bytes": list(text.encode()),
            "top_logprobs": [],
        }
        for text, logprob in choice.tokens
    ]
    return {"content": content, "refusal": None}
