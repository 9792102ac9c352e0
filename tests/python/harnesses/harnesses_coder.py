"""A scripted model that fixes a small repository with whatever tools an agent offers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harnesses_bench import tool_call, turns

from lightning_lab.records import AgentResult, Task
from lightning_lab.tasks import grader

REPOSITORY = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "test_calc.py": "from calc import add\nassert add(2, 3) == 5\n",
}
FIX = "sed -i 's/a - b/a + b/' calc.py"
CHECK = "python3 test_calc.py && echo ok"
DONE = "add() now adds."


def task(agent: str) -> Task:
    """The task; its prompt says for whom it is, so that the model knows the tools."""
    prompt = f"Task for {agent}: add() in calc.py is wrong. Fix it so that test_calc.py passes."
    return Task(id=f"t-{agent}", prompt=prompt, fields={"files": REPOSITORY})


@grader
def fixed(task: Task, result: AgentResult) -> bool:
    return (Path(result.workdir) / "calc.py").read_text() == "def add(a, b):\n    return a + b\n"


def solve(prompt: str) -> str:
    """The next reply: look, thinking aloud; fix; check; say that it is done."""
    agent = re.search(r"Task for ([\w-]+):", prompt)
    assert agent is not None, prompt[-2000:]
    moves = _moves(agent[1], prompt)
    return moves[min(turns(prompt), len(moves) - 1)]


def _moves(agent: str, prompt: str) -> Sequence[str]:
    look, fix, check = (shell(agent, command) for command in ("cat calc.py", FIX, CHECK))
    done = DONE
    if agent == "mini-swe-agent":
        done = shell(agent, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    if agent == "claude-code":
        file = f"{_directory(prompt)}/calc.py"
        look = tool_call("Read", file_path=file)
        fix = tool_call("Edit", file_path=file, old_string="a - b", new_string="a + b")
    if agent == "qwen-code":
        look = tool_call("read_file", file_path=f"{_directory(prompt)}/calc.py")
    return ["<think>\nI read it first.\n</think>\n\nI will look.\n" + look, fix, check, done]


_TOOLS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "codex": ("exec_command", "cmd", {}),
    "claude-code": ("Bash", "command", {"description": "run it"}),
    "opencode": ("bash", "command", {"description": "run it"}),
    "qwen-code": ("run_shell_command", "command", {"is_background": False}),
    "openhands": ("terminal", "command", {"security_risk": "LOW"}),
}


def shell(agent: str, command: str) -> str:
    """A call of the agent's shell tool."""
    tool, argument, more = _TOOLS.get(agent, ("bash", "command", {}))
    return tool_call(tool, **{argument: command}, **more)


def _directory(prompt: str) -> str:
    """The working directory, as the agent told the model."""
    found = re.search(r"(/\S*?/r-[\w-]+/work)\b", prompt)
    assert found is not None, prompt[:3000]
    return found[1]
