"""Messages to ids and back: the model's own tokenizer and chat template, no torch."""

from lightning_lab.tokens.codec import ChatCodec
from lightning_lab.tokens.errors import TemplateError, TokenizerError

__all__ = ["ChatCodec", "TemplateError", "TokenizerError"]
