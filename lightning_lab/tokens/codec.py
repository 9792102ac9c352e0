"""One model's tokenizer and chat template: messages ↔ ids."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from lightning_lab.records import Ids, Message
from lightning_lab.tokens import template as templates
from lightning_lab.tokens.beginning import Beginning
from lightning_lab.tokens.errors import TemplateError, TokenizerError
from lightning_lab.tokens.parsing import parse_reply
from lightning_lab.tokens.turns import turn_marks

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
)
_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|endofturn|>", "<|end_of_turn|>", "</s>")
"""Tokens that end a turn where the chat template writes them, whatever the generation settings say."""


_SOME_TOOL = {"type": "function", "function": {"name": "a", "description": "", "parameters": {"type": "object"}}}


class ChatCodec:
    """Renders conversations with a model's own tokenizer and template, and parses what it sampled.

    Thread-safe; `render` takes well below a millisecond for short conversations and releases the interpreter while
    it tokenizes.
    """

    def __init__(self, directory: Path | str, *, chat_template: str | Path | None = None) -> None:
        """``chat_template``: template text, or a file that holds one. Raises `TokenizerError`."""
        self.directory = Path(directory)
        if not self.directory.is_dir():
            raise TokenizerError(
                f"There is no model directory at {self.directory}. "
                "Give the path of a Hugging Face model directory (config.json, tokenizer.json, *.safetensors)."
            )
        self._config = _read_json(self.directory / "tokenizer_config.json")
        self._tokenizer = _load_tokenizer(self.directory)
        self._special = _special_tokens(self.directory, self._config)
        self._variables: Mapping[str, Any] = self._special
        self._given = chat_template
        self._template, self._tool_template = self._find_templates(chat_template)
        self.stop_ids = self._find_stop_ids()

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process reads the same files."""
        return partial(ChatCodec, chat_template=self._given), (self.directory,)

    @property
    def vocabulary_size(self) -> int:
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @property
    def eos_id(self) -> int | None:
        eos = self._special.get("eos_token")
        return None if eos is None else self._tokenizer.token_to_id(eos)

    def render_text(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The conversation as text, generation prompt included. Raises `TemplateError`."""
        return templates.render(self._choose_template(messages, tools), messages, tools, self._variables)

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> Ids:
        """The conversation as the ids that the model reads, shape [n]. Raises `TemplateError`."""
        return self.encode(self.render_text(messages, tools))

    def encode(self, text: str) -> Ids:
        """Text to ids without added special tokens; special tokens that the text spells become themselves."""
        return np.asarray(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int32)

    def decode(self, ids: Ids) -> str:
        """Ids to text, special tokens shown."""
        return str(self._tokenizer.decode(np.asarray(ids).tolist(), skip_special_tokens=False))

    def parse(self, ids: Ids) -> Message:
        """Sampled ids → assistant message. End-of-turn tokens at the end are left out, others stay as text."""
        return parse_reply(self.decode(self.without_end(ids)), opened=self._opens_thoughts)

    def beginning(self) -> Beginning:
        """A reader of one reply that is still being sampled: `parse` of all its ids begins with what that tells."""
        return Beginning(self.decode, self.stop_ids, opened=self._opens_thoughts)

    def without_end(self, ids: Ids) -> Ids:
        """Sampled ids without the end-of-turn tokens at their end."""
        end = len(ids)
        while end and int(ids[end - 1]) in self.stop_ids:
            end -= 1
        return ids[:end]

    def fingerprint(self) -> dict[str, str]:
        """SHA-256 of the tokenizer and of the chat template."""
        return {
            "tokenizer": hashlib.sha256(self._tokenizer.to_str().encode()).hexdigest(),
            "chat_template": hashlib.sha256(self._template.encode()).hexdigest(),
        }

    def server_template(self) -> str:
        """One template for a server that renders by itself: the model's own, or where that knows no tools the shipped.

        Raises `TemplateError` where neither can express tools.
        """
        if templates.knows_tools(self._template):
            return self._template
        if self._tool_template is None:
            self._tool_template = self._shipped_tool_template()
        turn = self._variables.get("turn")
        return (
            self._tool_template if turn is None else f"{{%- set turn = {json.dumps(turn)} -%}}\n{self._tool_template}"
        )

    def save(self, directory: Path) -> None:
        """Copy tokenizer, template and generation settings, so that ``directory`` is a model directory too."""
        for name in _FILES:
            source = self.directory / name
            if source.is_file():
                shutil.copyfile(source, directory / name)
        (directory / "chat_template.jinja").write_text(self._template, encoding="utf-8")
        extra = self.directory / "additional_chat_templates"
        if extra.is_dir():
            shutil.copytree(extra, directory / extra.name, dirs_exist_ok=True)

    @cached_property
    def _opens_thoughts(self) -> bool:
        """Whether the template ends a prompt inside a thought; True where that is not known."""
        asked = [Message(role="user", content="a")]
        try:
            prompts = [self.render_text(asked), self.render_text(asked, [_SOME_TOOL])]
        except TemplateError:
            return True
        return any(prompt.rfind("<think>") > prompt.rfind("</think>") for prompt in prompts)

    def _find_templates(self, given: str | Path | None) -> tuple[str, str | None]:
        """(template, template for conversations with tools or None). A given template serves both."""
        if given is not None:
            text = _template_text(given)
            templates.compile_template(text)
            return text, text if templates.knows_tools(text) else None
        named = _named_templates(self.directory, self._config)
        if not named:
            raise TokenizerError(
                f"The tokenizer in {self.directory} has no chat template, so conversations cannot be shown to it. "
                "Give one with chat_template=… (text or file), or use an instruction-tuned model."
            )
        default = named.get("default") or next(iter(named.values()))
        templates.compile_template(default)
        return default, named.get("tool_use") or (default if templates.knows_tools(default) else None)

    def _choose_template(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
        if not tools and not any(message.tool_calls or message.role == "tool" for message in messages):
            return self._template
        if self._tool_template is None:
            self._tool_template = self._shipped_tool_template()
        return self._tool_template

    def _shipped_tool_template(self) -> str:
        marks = turn_marks(
            lambda token: self._tokenizer.token_to_id(token) is not None, self._special.get("bos_token", "")
        )
        if marks is None:
            raise TemplateError(
                f"The chat template of {self.directory} cannot express tools, and the shipped tool template knows the "
                "turns of ChatML, Llama 3, Gemma and DeepSeek, whose tokens this tokenizer lacks. "
                "Give a template that can with chat_template=…."
            )
        self._variables = {**self._special, "turn": marks}
        return templates.hermes_tools()

    def _find_stop_ids(self) -> frozenset[int]:
        ids = set(_generation_eos(self.directory))
        if self.eos_id is not None:
            ids.add(self.eos_id)
        for token in _END_OF_TURN:
            found = self._tokenizer.token_to_id(token)
            if found is not None and token in self._template:
                ids.add(found)
        return frozenset(ids)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerError(
            f"{path} is not valid JSON ({error}). Restore the file from the model's source."
        ) from error
    return value if isinstance(value, dict) else {}


def _load_tokenizer(directory: Path) -> Tokenizer:
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise TokenizerError(
            f"{directory} has no tokenizer.json. Save the tokenizer in its fast form once, with "
            "transformers.AutoTokenizer.from_pretrained(…).save_pretrained(…)."
        )
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises a bare Exception
        raise TokenizerError(
            f"{path} could not be read ({error}). Restore the file from the model's source."
        ) from error


def _special_tokens(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by name, as chat templates refer to them."""
    merged = {**_read_json(directory / "special_tokens_map.json"), **config}
    found: dict[str, str] = {}
    for name in _SPECIAL_NAMES:
        value = merged.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            found[name] = value
    return found


def _named_templates(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name; files win over the tokenizer's settings, as in transformers."""
    named: dict[str, str] = {}
    declared = config.get("chat_template")
    if isinstance(declared, str):
        named["default"] = declared
    elif isinstance(declared, list):
        named.update({str(entry["name"]): str(entry["template"]) for entry in declared})
    for path in sorted((directory / "additional_chat_templates").glob("*.jinja")):
        named[path.stem] = path.read_text(encoding="utf-8")
    main = directory / "chat_template.jinja"
    if main.is_file():
        named["default"] = main.read_text(encoding="utf-8")
    return named


def _template_text(given: str | Path) -> str:
    """A one-line string without Jinja in it is a file name."""
    if isinstance(given, str) and ("{" in given or "\n" in given):
        return given
    path = Path(given)
    if not path.is_file():
        raise TokenizerError(f"There is no chat template at {path}. Give the template's text or an existing file.")
    return path.read_text(encoding="utf-8")


def _generation_eos(directory: Path) -> list[int]:
    for name in ("generation_config.json", "config.json"):
        eos = _read_json(directory / name).get("eos_token_id")
        if isinstance(eos, int):
            return [eos]
        if isinstance(eos, list):
            return [int(token) for token in eos]
    return []
