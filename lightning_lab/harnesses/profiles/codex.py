"""OpenAI Codex, ``codex exec``. Speaks Responses only; its own sandbox is off, the rollout's process is its bounds."""

from lightning_lab.harnesses.profile import WAIT_S, Profile

_CONFIG = f"""\
model = "any"
model_provider = "lab"
approval_policy = "never"
sandbox_mode = "danger-full-access"
web_search = "disabled"
check_for_update_on_startup = false

[features]
multi_agent = false
goals = false

[analytics]
enabled = false

[model_providers.lab]
name = "lab"
base_url = "{{url}}/v1"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
stream_idle_timeout_ms = {WAIT_S * 1000}
"""

CODEX = Profile(
    name="codex",
    version="0.171.0",
    npm=("@openai/codex",),
    argv=("{folder}/node_modules/.bin/codex", "exec", "--json", "--skip-git-repo-check", "--", "{prompt}"),
    env={"CODEX_HOME": "{home}/.codex"},
    home={".codex/config.toml": _CONFIG},
)
