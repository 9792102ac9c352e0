"""What can go wrong between messages and ids."""

from __future__ import annotations


class TokenizerError(RuntimeError):
    """The tokenizer or its chat template could not be loaded; the message names the path and what to do."""


class TemplateError(TokenizerError):
    """The chat template cannot express this conversation."""
