"""Secrets, as rules find them: replaced in what is shown and exported, kept in the store until it is purged.

A rule is a regular expression with a name. Where it has a group called ``secret``, that group is hidden, else the
whole match.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

SECRETS: Mapping[str, str] = {
    "anthropic_key": r"\bsk-ant-[A-Za-z0-9_-]{16,}",
    "openai_key": r"\bsk-[A-Za-z0-9_-]{20,}",
    "lab_key": r"\bll-[A-Za-z0-9_-]{40,}",
    "github_token": r"\b(?:gh[pousr]_|github_pat_)[A-Za-z0-9_]{20,}",
    "gitlab_token": r"\bglpat-[A-Za-z0-9_-]{20,}",
    "aws_key": r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    "google_key": r"\bAIza[A-Za-z0-9_-]{35}",
    "huggingface_token": r"\bhf_[A-Za-z0-9]{20,}",
    "slack_token": r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
    "package_token": r"\b(?:npm_[A-Za-z0-9]{36}|pypi-[A-Za-z0-9_-]{16,})",
    "jwt": r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",
    "private_key": r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
    "url_password": r"://[^\s/:@]{1,256}:(?P<secret>[^\s/@\[]{3,256})@",
    "bearer": r"(?i)\bbearer\s{1,4}(?P<secret>[A-Za-z0-9._~+/=-]{16,})",
    "named_secret": (
        r"(?i)(?:password|passwd|secret|api[_-]?key|access[_-]?key|auth[_-]?token|access[_-]?token)"
        r"[\"'\\]{0,4}\s{0,4}[:=]\s{0,4}[\"'\\]{0,4}(?P<secret>(?=[^\s\d]{0,255}\d)[^\s\"'\\,;&<>\[\]{}()]{8,256})"
    ),
}
"""Common shapes of keys, tokens and passwords, by name."""

T = TypeVar("T")

_PIECE = 4
"""Characters of a secret that say nothing yet."""
_CUT = "[redacted]"
_SHORT, _REMEMBERED = 256, 16_384
"""Runs repeat names and short texts without end: that many of them, of that many characters, are searched once."""


class Found(NamedTuple):
    """A secret in a text: ``text[start:stop]``."""

    start: int
    stop: int
    rule: str


class Redaction:
    """Rules, ready to use.

    >>> Redaction({"badge": r"EMP-[0-9]{4}"}).text("ask EMP-1234")
    'ask [redacted badge]'
    """

    def __init__(self, rules: Mapping[str, str] = SECRETS) -> None:
        """Raises ValueError for what is no regular expression, or would hide nothing at all (an empty match)."""
        self._rules: dict[str, re.Pattern[str]] = {}
        for name, pattern in rules.items():
            try:
                self._rules[name] = re.compile(pattern)
            except (re.error, TypeError) as error:
                raise ValueError(f"The redaction rule {name!r} is no regular expression: {error}.") from None
            if self._rules[name].fullmatch(""):
                raise ValueError(f"The redaction rule {name!r} matches nothing at all; make it name a character.")

        self._known = lru_cache(_REMEMBERED)(self._search)

    def find(self, text: str) -> Sequence[Found]:
        """All secrets, from left to right, without overlaps."""
        return self._known(text) if len(text) <= _SHORT else self._search(text)

    def _search(self, text: str) -> Sequence[Found]:
        found: list[Found] = []
        for name, pattern in self._rules.items():
            part = "secret" if "secret" in pattern.groupindex else 0
            found += [Found(*match.span(part), name) for match in pattern.finditer(text)]
        apart: list[Found] = []
        for one in sorted(one for one in found if one.stop > one.start):
            if apart and one.start < apart[-1].stop:
                apart[-1] = apart[-1]._replace(stop=max(one.stop, apart[-1].stop))
            else:
                apart.append(one)
        return apart

    def text(self, text: str) -> str:
        """The text with ``[redacted name-of-rule]`` in place of each secret."""
        parts, at = [], 0
        for found in self.find(text):
            parts += [text[at : found.start], f"[redacted {found.rule}]"]
            at = found.stop
        return "".join([*parts, text[at:]]) if parts else text

    def window(self, text: str, secrets: Collection[str]) -> str:
        """As `text`, for a piece that was cut out of a longer text, perhaps in the middle of one of ``secrets``."""
        for secret in secrets:
            for size in range(len(secret) - 1, _PIECE - 1, -1):
                if text.startswith(secret[-size:]):
                    text = _CUT + text[size:]
                if text.endswith(secret[:size]):
                    text = text[:-size] + _CUT
            text = text.replace(secret, _CUT)
        return self.text(text)

    def value(self, value: Any) -> Any:
        """A JSON value with all its texts redacted; what a key says of its value counts as well."""
        if type(value) is str:
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.value(key): self._named(key, item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.value(item) for item in value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self.record(value)
        return value

    def secrets(self, value: Any) -> set[str]:
        """Every secret in the texts of a JSON value."""
        return {text[found.start : found.stop] for text in _texts(value) for found in self.find(text)}

    def record(self, record: T) -> T:
        """A record with all its texts redacted; arrays and enumerations stay."""
        fields = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}  # type: ignore[arg-type]
        changed = {name: shown for name, value in fields.items() if (shown := self.value(value)) is not value}
        return dataclasses.replace(record, **changed) if changed else record  # type: ignore[type-var]

    def _named(self, key: Any, item: Any) -> Any:
        if type(key) is not str or type(item) is not str:
            return self.value(item)
        prefix = f"{key}="  # a rule may need both: {"password": "…"}
        shown = self.text(prefix + item)
        return shown[len(prefix) :] if shown.startswith(prefix) else self.text(item)


COMMON = Redaction()
"""With `SECRETS`."""


def _texts(value: Any) -> Iterator[str]:
    if type(value) is str:
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(f"{key}={item}" if type(item) is str else item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
