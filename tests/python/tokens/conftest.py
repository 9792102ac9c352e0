"""A byte-level tokenizer with ChatML and Hermes tokens, made on the spot."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

TOOL_TEMPLATE = """
{%- if tools %}{{- '<|im_start|>system\\n' }}{%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}
{{- '<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.reasoning_content %}{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' "
    "+ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

MakeTokenizer = Callable[..., Path]


@pytest.fixture
def make_tokenizer(tmp_path: Path) -> MakeTokenizer:
    def make(
        template: Any = TOOL_TEMPLATE,
        *,
        special: tuple[str, ...] = ("<|im_start|>", "<|im_end|>", "<think>", "</think>"),
        **config: Any,
    ) -> Path:
        directory = tmp_path / "model"
        directory.mkdir(exist_ok=True)
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])
        tokenizer.save(str(directory / "tokenizer.json"))
        if template is not None:
            config["chat_template"] = template
        (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", **config}))
        return directory

    return make


@pytest.fixture
def plain_template() -> str:
    return PLAIN_TEMPLATE
