"""OpenCode, ``opencode run``. With a title given it makes no call for one."""

import json

from lightning_lab.harnesses.profile import Profile

_OPTIONS = {"baseURL": "{url}/v1", "apiKey": "{key}", "timeout": False, "headerTimeout": False, "chunkTimeout": False}
_CONFIG = {
    "autoupdate": False,
    "share": "disabled",
    "provider": {
        "lab": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "lab",
            "options": _OPTIONS,
            "models": {"any": {"limit": {"context": 131072, "output": 8192}}},
        }
    },
}

_PLUGIN = {"packages": {"": {"dependencies": {"@opencode-ai/plugin": "*"}}}}
"""What the program looks for before it installs that package from the registry, which it would do in every rollout."""

OPENCODE = Profile(
    name="opencode",
    version="1.18.33",
    npm=("opencode-ai",),
    argv=(
        "{folder}/node_modules/.bin/opencode",
        "run",
        "--format",
        "json",
        "-m",
        "lab/any",
        "--title",
        "task",
        "--",
        "{prompt}",
    ),
    env={"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
    home={
        ".config/opencode/opencode.json": json.dumps(_CONFIG, indent=2),
        ".config/opencode/package-lock.json": json.dumps(_PLUGIN),
        ".config/opencode/node_modules/.keep": "",
    },
)
