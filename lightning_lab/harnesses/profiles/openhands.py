"""OpenHands CLI, headless. It is a Python 3.12 program."""

from lightning_lab.harnesses.profile import Profile

OPENHANDS = Profile(
    name="openhands",
    version="1.16.0",
    pypi=("openhands",),
    python="3.12",
    argv=(
        "{folder}/bin/openhands",
        "--headless",
        "--always-approve",
        "--override-with-envs",
        "--json",
        "-t",
        "{prompt}",
    ),
    env={
        "LLM_BASE_URL": "{url}/v1",
        "LLM_API_KEY": "{key}",
        "LLM_MODEL": "openai/any",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it tries to fetch one
    },
)
