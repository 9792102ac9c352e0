"""Claude Code, ``claude -p``. It finds the gateway by ``ANTHROPIC_BASE_URL``, which every rollout has."""

from lightning_lab.harnesses.profile import WAIT_S, Profile

CLAUDE_CODE = Profile(
    name="claude-code",
    version="2.1.332",
    npm=("@anthropic-ai/claude-code",),
    argv=(
        "{folder}/node_modules/.bin/claude",
        "-p",
        "--model",
        "any",
        "--dangerously-skip-permissions",
        "--output-format",
        "stream-json",
        "--verbose",
        "--",
        "{prompt}",
    ),
    env={
        "IS_SANDBOX": "1",  # without it the program refuses to skip permissions as root
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "API_TIMEOUT_MS": str(WAIT_S * 1000),
        "CLAUDE_STREAM_IDLE_TIMEOUT_MS": str(WAIT_S * 1000),
        "CLAUDE_BYTE_STREAM_IDLE_TIMEOUT_MS": str(WAIT_S * 1000),
        "API_FORCE_IDLE_TIMEOUT": "0",
    },
)
