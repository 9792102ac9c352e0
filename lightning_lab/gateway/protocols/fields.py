"""Typed access to the fields of untrusted JSON: a wrong type is a `Fault` 400 that names the field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import orjson

from lightning_lab.gateway.errors import Fault, bad_request

JsonObject = Mapping[str, Any]


def mapping(value: Any, param: str) -> JsonObject:
    """A JSON object."""
    if not isinstance(value, dict):
        raise _wrong(param, "an object", value)
    return value


def array(value: Any, param: str) -> list[Any]:
    """A JSON array."""
    if not isinstance(value, list):
        raise _wrong(param, "an array", value)
    return value


def items(body: JsonObject, key: str, where: str = "") -> list[Any]:
    """A JSON array; absent and null are empty."""
    value = body.get(key)
    return [] if value is None else array(value, where + key)


def options(body: JsonObject, key: str) -> JsonObject:
    """A JSON object; absent and null are empty."""
    value = body.get(key)
    return {} if value is None else mapping(value, key)


def text(body: JsonObject, key: str, where: str = "") -> str:
    """A string; absent and null are empty."""
    value = body.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _wrong(where + key, "a string", value)
    return value


def flag(body: JsonObject, key: str) -> bool:
    """A boolean; absent and null are False."""
    value = body.get(key)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise _wrong(key, "a boolean", value)
    return value


def count(body: JsonObject, key: str, *, most: int | None = None) -> int | None:
    """A positive integer, or None."""
    value = body.get(key)
    if value is None:
        return None
    if not is_integer(value):
        raise _wrong(key, "an integer", value)
    if value < 1 or (most is not None and value > most):
        raise bad_request(f"{key} must be {'at least 1' if most is None else f'between 1 and {most}'}.", param=key)
    return int(value)


def stops(body: JsonObject, key: str = "stop") -> tuple[str, ...]:
    """Stop texts: a string, an array of strings, or nothing."""
    value = body.get(key)
    if value is None:
        return ()
    found = [value] if isinstance(value, str) else array(value, key)
    if any(not isinstance(one, str) for one in found):
        raise bad_request(f"{key} must be a string or an array of strings.", param=key)
    return tuple(one for one in found if one)


def asked(body: JsonObject, fields: Mapping[str, type]) -> dict[str, Any]:
    """The sampling fields that the request names, as sent; each is checked against ``fields``."""
    found: dict[str, Any] = {}
    for key, value in body.items():
        kind = fields.get(key)
        if kind is None or value is None:
            continue
        if kind is float and not _is_number(value):
            raise _wrong(key, "a number", value)
        if kind is int and not is_integer(value):
            raise _wrong(key, "an integer", value)
        found[key] = value
    return found


def rest(body: JsonObject, known: frozenset[str]) -> dict[str, Any]:
    """The fields of ``body`` that nobody interprets: kept, never refused."""
    return {key: value for key, value in body.items() if key not in known}


def content_text(value: Any, param: str) -> str:
    """The text of a message's content: a string, null, or an array of text parts (joined by newlines)."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return "\n".join(_part_text(part, f"{param}[{index}]") for index, part in enumerate(array(value, param)))


def content(value: Any, param: str) -> tuple[str, tuple[JsonObject, ...]]:
    """The text of a message's content as `content_text`, and the images that stand in it, as in `Message.images`."""
    if not isinstance(value, list):
        return content_text(value, param), ()
    texts: list[str] = []
    images: list[JsonObject] = []
    for index, part in enumerate(value):
        where = f"{param}[{index}]"
        if is_image(part):
            images.append(image(part, where, after=len("\n".join(texts))))
        else:
            texts.append(_part_text(part, where))
    return "\n".join(texts), tuple(images)


def is_image(part: Any) -> bool:
    """Whether a part of a content is an image, in the words of any protocol."""
    kind = part.get("type") if isinstance(part, dict) else None
    return isinstance(kind, str) and kind in _IMAGES


def image(part: JsonObject, param: str, *, after: int) -> JsonObject:
    """An image as in `Message.images`."""
    key = _IMAGES[part["type"]]
    said, where = part.get(key), f"{param}.{key}"
    if key == "source":
        return {"url": _source_url(mapping(said, where), where), "after": after}
    holder, name, place = (said, "url", f"{where}.") if isinstance(said, dict) else (part, key, f"{param}.")
    url, detail = text(holder, name, place), text(holder, "detail", place)
    if not url:
        raise bad_request(f"{place}{name} must be the URL of an image.", param=f"{place}{name}")
    return {"url": url, "after": after, **({"detail": detail} if detail else {})}


def image_place(value: Any, at: str, levels: int = 6) -> str:
    """Where the first image stands in what a client sent, within so many levels; empty without one."""
    if is_image(value) or not levels:
        return at if levels else ""
    inside: list[tuple[str, Any]] = []
    if isinstance(value, list):
        inside = [(f"{at}[{index}]", one) for index, one in enumerate(value)]
    elif isinstance(value, dict):
        inside = [(f"{at}.{key}", one) for key, one in value.items()]
    return next((found for where, one in inside if (found := image_place(one, where, levels - 1))), "")


def _source_url(source: JsonObject, where: str) -> str:
    kind = text(source, "type", f"{where}.")
    if kind == "base64":
        return f"data:{text(source, 'media_type', f'{where}.')};base64,{text(source, 'data', f'{where}.')}"
    url = text(source, "url", f"{where}.") if kind == "url" else ""
    if not url:
        raise bad_request(
            f"{where} must be a URL or base64 data: this gateway keeps no files.",
            param=where,
            code="unsupported_content",
        )
    return url


def arguments_text(value: Any, param: str) -> str:
    """Tool-call arguments as text: what was said, or, where a client parsed them, JSON again."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return orjson.dumps(value).decode()
    raise _wrong(param, "a string", value)


def function_tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A function's definition in canonical form: only what a model reads, always in the same order."""
    name = text(tool, "name", where)
    if not name:
        raise bad_request(f"{where}name must not be empty.", param=f"{where}name")
    function: dict[str, Any] = {"name": name}
    if tool.get("description") is not None:
        function["description"] = text(tool, "description", where)
    if tool.get("parameters") is not None:
        function["parameters"] = mapping(tool["parameters"], f"{where}parameters")
    return {"type": "function", "function": function}


def deeper(value: Any) -> Any:
    """``value`` inside as many arrays as answers and records may put around it: where JSON is too deep, this is."""
    for _ in range(_ROOM):
        value = (value,)
    return value


def is_integer(value: Any) -> bool:
    """JSON has one kind of number: 1.0 is an integer, too."""
    return _is_number(value) and value == int(value)


_ROOM = 32
_IMAGES = {"image_url": "image_url", "input_image": "image_url", "image": "source"}
"""Parts that are images, and the field that holds them: Chat, Responses, Messages."""
_PART_TEXT = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


def _part_text(part: Any, param: str) -> str:
    if isinstance(part, str):
        return part
    kind = text(mapping(part, param), "type", f"{param}.")
    field = _PART_TEXT.get(kind)
    if field is None:
        raise bad_request(
            f"Content of type {kind!r} cannot be given to a text model.", param=param, code="unsupported_content"
        )
    return text(part, field, f"{param}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _wrong(param: str, wanted: str, value: Any) -> Fault:
    return bad_request(
        f"{param} must be {wanted}, not {_JSON_NAMES.get(type(value), 'null')}.", param=param, code="invalid_type"
    )


_JSON_NAMES = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    list: "an array",
    dict: "an object",
}
