"""The quickstart model's own tokenizer: byte-level BPE of a few hundred tokens, every digit a token of its own."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Never shown as text; the last one ends a turn."""
MARKERS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "</tools>")
"""One token each, but part of the text."""
OPERATORS = (" + ", " - ", " * ", " / ")
"""One token each where numbers are joined, which makes expressions short and their places easy to tell apart."""
MAX_TOKENS = 768
# Qwen2's rule for splitting text, which makes each digit a piece; readers that know Qwen2 bring it along themselves.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def build_tokenizer(texts: Iterable[str], chat_template: Path, context_length: int) -> PreTrainedTokenizerFast:
    """Learn merges from ``texts``. Any UTF-8 text encodes and decodes to itself: every byte is a token."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=MAX_TOKENS,
        min_frequency=2,
        special_tokens=list(CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(marker, normalized=False, special=False) for marker in MARKERS + OPERATORS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=CONTROL[2],
        pad_token=CONTROL[0],
        model_max_length=context_length,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = chat_template.read_text()
    return fast
