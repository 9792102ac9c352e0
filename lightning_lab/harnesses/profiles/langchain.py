"""A coding agent of LangChain: one shell tool, Chat Completions."""

from lightning_lab.harnesses.profile import WAIT_S, Profile

_SCRIPT = f'''\
import subprocess
import sys

from langchain.agents import create_agent
from langchain.tools import tool
from langchain_openai import ChatOpenAI


@tool
def bash(command: str) -> str:
    """Run a shell command in the working directory; returns its output and exit code."""
    done = subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return f"{{done.stdout}}[exit code {{done.returncode}}]"


model = ChatOpenAI(model="any", timeout={WAIT_S})
agent = create_agent(model, tools=[bash], system_prompt="Solve the task with the bash tool.")
asked = {{"messages": [{{"role": "user", "content": sys.argv[1]}}]}}
print(agent.invoke(asked, {{"recursion_limit": 200}})["messages"][-1].content)
'''

LANGCHAIN = Profile(
    name="langchain",
    version="1.5.2",
    pypi=("langchain", "langchain-openai==1.7.0"),
    argv=("{folder}/bin/python", "-P", "-c", _SCRIPT, "{prompt}"),
)
