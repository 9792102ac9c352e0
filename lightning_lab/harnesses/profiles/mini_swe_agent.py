"""mini-swe-agent, ``mini -y``: the shell is its only tool, Chat Completions."""

from lightning_lab.harnesses.profile import WAIT_S, Profile

MINI_SWE_AGENT = Profile(
    name="mini-swe-agent",
    version="2.4.6",
    pypi=("mini-swe-agent",),
    argv=(
        "{folder}/bin/mini",
        "-y",
        "--exit-immediately",
        "-m",
        "openai/any",
        "-c",
        "mini.yaml",
        "-c",
        f"model.model_kwargs.timeout={WAIT_S}",
        "-t",
        "{prompt}",
    ),
    env={
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_SILENT_STARTUP": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    },
)
