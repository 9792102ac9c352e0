"""A coding agent of the OpenAI Agents SDK: one shell tool. Speaks Responses, the SDK's default."""

from lightning_lab.harnesses.profile import WAIT_S, Profile

_SCRIPT = f'''\
import asyncio
import subprocess
import sys

from agents import Agent, Runner, function_tool, set_default_openai_client, set_tracing_disabled
from openai import AsyncOpenAI


@function_tool
def bash(command: str) -> str:
    """Run a shell command in the working directory; returns its output and exit code."""
    done = subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return f"{{done.stdout}}[exit code {{done.returncode}}]"


async def main():
    set_tracing_disabled(True)
    set_default_openai_client(AsyncOpenAI(timeout={WAIT_S}))
    bot = Agent(name="coder", instructions="Solve the task with the bash tool.", tools=[bash], model="any")
    print((await Runner.run(bot, sys.argv[1], max_turns=100)).final_output)


asyncio.run(main())
'''

OPENAI_AGENTS = Profile(
    name="openai-agents",
    version="0.24.0",
    pypi=("openai-agents",),
    argv=("{folder}/bin/python", "-P", "-c", _SCRIPT, "{prompt}"),
)
