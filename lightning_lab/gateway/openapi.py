"""What the gateway serves, as an OpenAPI document: the fields that it reads, and the answers that it gives.

Objects may hold more: what is not named here is kept in the record of the call and never refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_lab.gateway.protocols import chat, messages, responses

Schema = dict[str, Any]

_TEXT: Schema = {"type": ["string", "null"]}
_FLAG: Schema = {"type": ["boolean", "null"]}
_OBJECT: Schema = {"type": "object"}
_STOPS: Schema = {"anyOf": [_TEXT, {"type": "array", "items": {"type": "string"}}]}
_COUNT: Schema = {"type": ["integer", "null"], "minimum": 1}
_SOME: Schema = {"type": "string", "minLength": 1}
_SEEN = "For a policy whose model sees images; one that reads text alone answers 400 and names the place."
_NUMBERS = {float: {"type": ["number", "null"]}, int: {"type": ["integer", "null"]}}
_ROLLOUT: Schema = {"name": "rollout", "in": "path", "required": True, "schema": {"type": "string"}}
_MODEL: Schema = {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def document() -> Schema:
    """The document. Every route exists at the root, where the key tells the rollout, and under the rollout's path."""
    routes = {
        "/v1/chat/completions": _post("Chat Completions", _chat(), _CHAT_ANSWER, _OPENAI_ERROR),
        "/v1/completions": _post("Completions", _completions(), _COMPLETION, _OPENAI_ERROR),
        "/v1/responses": _post("Responses", _responses(), _RESPONSE, _OPENAI_ERROR),
        "/v1/messages": _post("Messages", _messages(), _MESSAGE, _ANTHROPIC_ERROR),
        "/v1/messages/count_tokens": _post("Count tokens", _messages(), _COUNTED, _ANTHROPIC_ERROR, streams=False),
        "/v1/models": _get("Models", {"type": "object", "required": ["data"]}),
        "/v1/models/{model}": _get("Model", {"type": "object", "required": ["id"]}, _MODEL),
    }
    below = {f"/rollout/{{rollout}}{path}": {**route, "parameters": [_ROLLOUT]} for path, route in routes.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Lightning Lab gateway", "version": "1"},
        "paths": {**routes, **below, "/health": {"get": {**_get("Health", _OBJECT)["get"], "security": []}}},
        "security": [{"bearer": []}, {"key": []}],
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            }
        },
    }


def _post(title: str, asked: Schema, answer: Schema, error: Schema, *, streams: bool = True) -> Schema:
    body = {"required": True, "content": {"application/json": {"schema": asked}}}
    content: Schema = {"application/json": {"schema": answer}}
    if streams:
        content["text/event-stream"] = {"schema": _object(data={"type": "string"}, event={"type": "string"})}
    answers = {"200": {"description": "The reply.", "content": content}, **_refusals(error)}
    return {"post": {"summary": title, "requestBody": body, "responses": answers}}


def _get(title: str, answer: Schema, *parameters: Schema) -> Schema:
    found = {"description": "Found.", "content": {"application/json": {"schema": answer}}}
    answers = {"200": found, **_refusals({"anyOf": [_OPENAI_ERROR, _ANTHROPIC_ERROR]})}
    return {"get": {"summary": title, "parameters": list(parameters), "responses": answers}}


def _refusals(error: Schema) -> Schema:
    """A fault of the client, or of the policy behind the gateway."""
    content = {"application/json": {"schema": error}}
    return {status: {"description": "Why not.", "content": content} for status in ("4XX", "500", "503")}


def _object(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return {"type": "object", "required": list(required), "properties": properties}


def _array(items: Schema, least: int = 0) -> Schema:
    return {"type": "array", "items": items, "minItems": least}


def _optional(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _one(value: str) -> Schema:
    return {"const": value}


def _sampling(fields: Mapping[str, type]) -> dict[str, Schema]:
    """The fields that the run decides about: recorded beside what was used."""
    kinds = {name: _NUMBERS.get(kind, {}) for name, kind in fields.items()}
    counts = {name: _COUNT for name in fields if "tokens" in name}
    stops = {name: _STOPS for name in fields if name in ("stop", "stop_sequences")}
    return {**kinds, **counts, **stops, **({"n": {**_COUNT, "maximum": 128}} if "n" in fields else {})}


def _common(fields: Mapping[str, type]) -> dict[str, Schema]:
    return {"model": _TEXT, "stream": _FLAG, **_sampling(fields)}


def _parts(*kinds: str, image: Schema | None = None) -> Schema:
    """Content: a string, or parts of text, and images where a model may be shown some."""
    part = _object(("type",), type={"enum": list(kinds)}, text=_TEXT)
    return {"anyOf": [_TEXT, _array(part if image is None else {"anyOf": [part, image]})]}


def _image(kind: str, field: str, held: Schema) -> Schema:
    return {"description": _SEEN, **_object(("type", field), **{"type": _one(kind), field: held})}


def _function(arguments: str) -> Schema:
    """A function that the model may call."""
    name = {"type": "string", "minLength": 1}
    return _object(("name",), name=name, description=_TEXT, **{arguments: _optional(_OBJECT)})


def _arguments() -> Schema:
    return {"anyOf": [_TEXT, _OBJECT]}


def _chat() -> Schema:
    said = _object(("name",), name={"type": "string"}, arguments=_arguments())
    call = _object(("function",), id=_TEXT, type=_one("function"), function=said)
    image = _image("image_url", "image_url", _object(("url",), url=_SOME, detail=_TEXT))
    shown, others = (
        _object(("role",), role={"enum": roles}, content=content, tool_call_id=_TEXT, name=_TEXT)
        for roles, content in (
            (["user", "tool"], _parts("text", image=image)),
            ([role for role in chat.ROLES if role not in ("assistant", "user", "tool")], _parts("text")),
        )
    )
    assistant = _object(
        ("role",),
        role=_one("assistant"),
        content=_parts("text"),
        reasoning_content=_TEXT,
        reasoning=_TEXT,
        tool_calls=_optional(_array(call)),
    )
    tool = _object(("type", "function"), type=_one("function"), function=_function("parameters"))
    return _object(
        ("messages",),
        messages=_array({"anyOf": [shown, others, assistant]}, 1),
        tools=_optional(_array(tool)),
        logprobs=_FLAG,
        stream_options=_optional(_object(include_usage=_FLAG)),
        **_common(chat.SAMPLING_FIELDS),
    )


def _completions() -> Schema:
    ids = _array({"type": "integer", "minimum": 0, "maximum": 255}, 1)
    return _object(
        ("prompt",),
        prompt={"anyOf": [{"type": "string", "minLength": 1}, ids]},
        stream_options=_optional(_object(include_usage=_FLAG)),
        **_common(chat.SAMPLING_FIELDS),
    )


def _responses() -> Schema:
    summary = _array(_object(("text",), type=_one("summary_text"), text={"type": "string"}))
    image = _image("input_image", "image_url", _SOME)
    items = [
        _object(("role",), type=_one("message"), role={"enum": roles}, content=content)
        for roles, content in (
            (["user"], _parts("input_text", "output_text", image=image)),
            (["system", "developer", "assistant"], _parts("input_text", "output_text")),
        )
    ]
    items += [
        _object(("type",), type=_one("reasoning"), summary=summary, encrypted_content=_TEXT),
        _object(("type",), type=_one("function_call"), call_id=_TEXT, name=_TEXT, arguments=_arguments()),
        _object(("type",), type=_one("function_call_output"), call_id=_TEXT, output=_parts("input_text", image=image)),
    ]
    function = _function("parameters")
    return _object(
        ("input",),
        input={"anyOf": [{"type": "string"}, _array({"anyOf": items}, 1)]},
        instructions=_TEXT,
        tools=_optional(_array({**function, "properties": {**function["properties"], "type": _one("function")}})),
        include=_optional(_array({"type": "string"})),
        **_common(responses.SAMPLING_FIELDS),
    )


def _messages() -> Schema:
    text = _object(("type", "text"), type=_one("text"), text={"type": "string"})
    source = {
        "anyOf": [
            _object(("type", "url"), type=_one("url"), url=_SOME),
            _object(("type", "media_type", "data"), type=_one("base64"), media_type=_SOME, data=_SOME),
        ]
    }
    image = _image("image", "source", source)
    thinking = _object(("type",), type=_one("thinking"), thinking=_TEXT, signature=_TEXT)
    use = _object(("type",), type=_one("tool_use"), id=_TEXT, name=_TEXT, input=_OBJECT)

    def turn(roles: list[str], *media: Schema) -> Schema:
        inside = {"anyOf": [_TEXT, _array({"anyOf": [text, *media]})]}
        result = _object(("type",), type=_one("tool_result"), tool_use_id=_TEXT, content=inside, is_error=_FLAG)
        blocks = _array({"anyOf": [text, thinking, use, result, *media]})
        return _object(("role",), role={"enum": roles}, content={"anyOf": [_TEXT, blocks]})

    turns = [turn(["user"], image), turn(["assistant", "system"])]
    return _object(
        ("messages",),
        messages=_array({"anyOf": turns}, 1),
        system={"anyOf": [_TEXT, _array(text)]},
        tools=_optional(_array(_function("input_schema"))),
        thinking=_optional(_object(type={"enum": ["enabled", "adaptive", "disabled"]})),
        **_common(messages.SAMPLING_FIELDS),
    )


_OPENAI_ERROR = _object(
    ("error",),
    error=_object(("message", "type", "param", "code"), message={"type": "string", "minLength": 1}, code=_TEXT),
)
_ANTHROPIC_ERROR = _object(
    ("type", "error"),
    type=_one("error"),
    error=_object(("type", "message"), message={"type": "string", "minLength": 1}),
)
_USAGE = _object(("prompt_tokens", "completion_tokens", "total_tokens"))
_CHOICES = _array(_object(("index", "finish_reason")), 1)
_CHAT_ANSWER = _object(
    ("id", "model", "choices", "usage"), object=_one("chat.completion"), choices=_CHOICES, usage=_USAGE
)
_COMPLETION = _object(
    ("id", "model", "choices", "usage"), object=_one("text_completion"), choices=_CHOICES, usage=_USAGE
)
_RESPONSE = _object(
    ("id", "model", "output", "usage"), object=_one("response"), status={"enum": ["completed", "incomplete"]}
)
_MESSAGE = _object(
    ("id", "model", "content", "stop_reason", "usage"), type=_one("message"), content=_array(_object(("type",)))
)
_COUNTED = _object(("input_tokens",), input_tokens={"type": "integer", "minimum": 1})
