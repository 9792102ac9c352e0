"""Chat templates: compiling them as Hugging Face does, and choosing one for a conversation.

The environment follows ``transformers.PreTrainedTokenizerBase.apply_chat_template`` (sandboxed Jinja, block trimming,
loop controls, ``raise_exception``, ``strftime_now``, a ``tojson`` that does not escape HTML), without importing
transformers, which would import torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from importlib import resources
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lightning_lab.records import Message
from lightning_lab.tokens.errors import TemplateError


class _GenerationBlock(Extension):
    """``{% generation %}`` marks assistant text for other users of the template; here it only renders its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


class SaidArguments(dict[str, Any]):
    """Arguments of a tool call: a mapping for templates that read it, and the characters that the model said."""

    said: str


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it, but what the model said is not written in other characters."""
    if isinstance(value, SaidArguments) and indent is None and separators is None and not sort_keys:
        return value.said
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


@lru_cache(maxsize=64)
def compile_template(source: str) -> jinja2.Template:
    """Compiled once per text. Raises `TemplateError` when the text is not a template."""
    try:
        return _environment().from_string(source)
    except jinja2.exceptions.TemplateError as error:
        raise TemplateError(
            f"The chat template is not valid Jinja ({error}). Give another with chat_template=…."
        ) from error


@lru_cache(maxsize=64)
def knows_tools(source: str) -> bool:
    """Whether a template reads the ``tools`` that it is given."""
    return "tools" in meta.find_undeclared_variables(_environment().parse(source))


@lru_cache(maxsize=1)
def hermes_tools() -> str:
    """The shipped template with Hermes-style tools; it reads ``turn``, see `turns.turn_marks`."""
    return resources.files("lightning_lab.tokens").joinpath("templates/hermes_tools.jinja").read_text(encoding="utf-8")


def _arguments(text: str) -> Any:
    """Templates expect a mapping; what is no JSON object stays the text that was said."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if not isinstance(value, dict):
        return text
    arguments = SaidArguments(value)
    arguments.said = text
    return arguments


def template_message(message: Message, *, knows_reasoning: bool = True) -> dict[str, Any]:
    """One message in the form that chat templates read.

    A template that does not know reasoning would drop it without a word: there it is part of the content, as it was
    said.
    """
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning and knows_reasoning:
        shown["reasoning_content"] = message.reasoning
    elif message.reasoning:
        shown["content"] = f"<think>\n{message.reasoning}\n</think>\n\n{message.content}"
    if message.tool_calls:
        shown["tool_calls"] = [
            {
                "id": call.get("id", ""),
                "type": "function",
                "function": {"name": call["name"], "arguments": _arguments(call["arguments"])},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        shown["tool_call_id"] = message.tool_call_id
    if message.name:
        shown["name"] = message.name
    return shown


def render(
    source: str, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
) -> str:
    """The conversation as text, generation prompt included. Raises `TemplateError`.

    ``variables`` are special tokens by name, and whatever else the template reads.
    """
    template = compile_template(source)
    knows_reasoning = "reasoning_content" in source
    try:
        return template.render(
            messages=[template_message(message, knows_reasoning=knows_reasoning) for message in messages],
            tools=[dict(tool) for tool in tools] or None,
            documents=None,
            add_generation_prompt=True,
            **variables,
        )
    except Exception as error:  # a template is foreign code: whatever it raises means the same to the caller
        roles = ", ".join(message.role for message in messages)
        raise TemplateError(
            f"The chat template cannot express this conversation (roles: {roles}): {error}. "
            "Change the messages, or give a template that can with chat_template=…."
        ) from error
