"""Messages to ids and back: the model's own tokenizer and chat template, no torch."""

from lightning_lab.tokens.codec import ChatCodec
from lightning_lab.tokens.errors import TemplateError, TokenizerError
from lightning_lab.tokens.fetching import TOKENIZERS, fetch_tokenizer, tokenizer_directory

__all__ = ["TOKENIZERS", "ChatCodec", "TemplateError", "TokenizerError", "fetch_tokenizer", "tokenizer_directory"]
