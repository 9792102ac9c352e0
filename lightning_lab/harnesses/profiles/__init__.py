"""One file per released agent; `PROFILES` has them by name."""

from __future__ import annotations

from lightning_lab.harnesses.errors import HarnessError
from lightning_lab.harnesses.profile import Profile
from lightning_lab.harnesses.profiles.claude_code import CLAUDE_CODE
from lightning_lab.harnesses.profiles.codex import CODEX
from lightning_lab.harnesses.profiles.langchain import LANGCHAIN
from lightning_lab.harnesses.profiles.mini_swe_agent import MINI_SWE_AGENT
from lightning_lab.harnesses.profiles.openai_agents import OPENAI_AGENTS
from lightning_lab.harnesses.profiles.opencode import OPENCODE
from lightning_lab.harnesses.profiles.openhands import OPENHANDS
from lightning_lab.harnesses.profiles.qwen_code import QWEN_CODE

PROFILES = {
    profile.name: profile
    for profile in (
        MINI_SWE_AGENT,
        CODEX,
        CLAUDE_CODE,
        OPENCODE,
        OPENHANDS,
        QWEN_CODE,
        OPENAI_AGENTS,
        LANGCHAIN,
    )
}
"""Every agent that `Harness.profile` knows."""


def profile_named(name: str) -> Profile:
    """Raises `HarnessError`, which lists the names that there are."""
    if name not in PROFILES:
        raise HarnessError(
            f"There is no launch profile {name!r}; there are {', '.join(PROFILES)}. "
            "Any other program: Harness.command([…])."
        )
    return PROFILES[name]
