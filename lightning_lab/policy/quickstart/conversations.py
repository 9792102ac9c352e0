"""Synthetic conversations that warm the quickstart model up: what it is shown, good habits and bad ones.

The tasks of the quickstart come from reasoning-gym's ``chain_sum``, which gives all terms of one expression the same
number of digits. Every expression made here mixes terms of different lengths, so no task of ``chain_sum``, whatever
its seed, can be among them: `could_be_a_task` is that rule as code.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Turn = Mapping[str, Any]

TASK_PHRASE = "State the final answer to the following arithmetic problem: {expr} ="
OTHER_PHRASES = (
    "What is {expr}?",
    "Compute {expr}.",
    "{expr}",
    "Please work out {expr} for me.",
    "Solve this: {expr} =",
    "Calculate the value of {expr} and reply with the number only.",
)
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "Use the tool for every problem.",
    "You solve arithmetic problems. Answer with the number only.",
    "Solve the problem with your calculator, then state the final answer.",
)
TOOL_NAMES = ("calc", "calculator", "calculate", "evaluate", "solve", "math", "run", "tool")
ARGUMENT_NAMES = ("expr", "expression", "problem", "text", "query", "code")
DESCRIPTIONS = (
    "Evaluate an arithmetic expression.",
    "Compute the value of an expression.",
    "A calculator for whole numbers.",
    "Work out an arithmetic problem and return the answer.",
    "",
)
SMALL_TALK = ("Hello!", "Hi, who are you?", "Tell me a story.", "Write a poem about the sea.", "What can you do?")
TOOL_ERRORS = (
    "An error occurred while running the tool. Please try again.",
    "Error: invalid syntax",
    "error: only whole numbers are understood",
)
TERMS = (2, 6)
DIGITS = (1, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How often the warm model does what reinforcement learning shall unlearn."""

    guess: float
    """Answers at once, without the tool."""
    stop_early: float
    """At every operator of the copied expression: leaves the rest out."""
    chatter: float
    """Wraps the final answer in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the conversations of one batch share: the system prompt, the tools and the wording of the question."""

    system: str
    tools: tuple[Mapping[str, Any], ...]
    phrase: str

    @property
    def argument(self) -> str:
        """Name of the tool's only argument."""
        return str(next(iter(self.tools[0]["function"]["parameters"]["properties"])))


def tool_schema(name: str, argument: str, description: str) -> dict[str, Any]:
    """A tool of one text argument, as agent libraries describe it (canonical OpenAI form)."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "properties": {argument: {"title": argument.title(), "type": "string"}},
                "required": [argument],
                "title": f"{name}_args",
                "type": "object",
                "additionalProperties": False,
            },
        },
    }


QUICKSTART_TOOL = tool_schema("calc", "expr", "Evaluate an arithmetic expression.")
QUICKSTART_SETTING = Setting(system="", tools=(QUICKSTART_TOOL,), phrase=TASK_PHRASE)


def draw_setting(rng: random.Random) -> Setting:
    """Half of the time what the quickstart sends, else a variation: small edits of the agent shall not break it."""
    if rng.random() < 0.5:
        return QUICKSTART_SETTING
    name, argument, description = rng.choice(TOOL_NAMES), rng.choice(ARGUMENT_NAMES), rng.choice(DESCRIPTIONS)
    return Setting(
        system=rng.choice(("", *SYSTEM_PROMPTS)),
        tools=() if rng.random() < 0.15 else (tool_schema(name, argument, description),),
        phrase=rng.choice((TASK_PHRASE, *OTHER_PHRASES)),
    )


def draw_expression(rng: random.Random) -> str:
    """Two to six terms of one to five digits, joined by + and -, never all of one length.

    Some are made of a few digits only: what follows is then hard to tell from the digits just before, so the model has
    to keep its place.
    """
    lengths = _draw_lengths(rng)
    digits = "0123456789" if rng.random() < 0.7 else "".join(rng.sample("0123456789", rng.randint(2, 4)))
    numbers = [_draw_number(rng, digits, length) for length in lengths]
    return numbers[0] + "".join(f" {rng.choice('+-')} {number}" for number in numbers[1:])


def _draw_lengths(rng: random.Random) -> list[int]:
    """Digits of each term: half of the time any, else all alike but one, which is as near to a task as is allowed."""
    terms, length = rng.randint(*TERMS), rng.randint(*DIGITS)
    alike = rng.random() < 0.5
    lengths = [length if alike else rng.randint(*DIGITS) for _ in range(terms)]
    if len(set(lengths)) == 1:
        lengths[rng.randrange(terms)] = rng.choice([other for other in range(1, 6) if other != lengths[0]])
    return lengths


def _draw_number(rng: random.Random, digits: str, length: int) -> str:
    first = rng.choice(digits if length == 1 else digits.replace("0", ""))
    return first + "".join(rng.choice(digits) for _ in range(length - 1))


def could_be_a_task(expression: str) -> bool:
    """Whether reasoning-gym's ``chain_sum`` could give this expression: all terms have the same number of digits."""
    return len({len(number) for number in re.findall(r"\d+", expression)}) == 1


def value(expression: str) -> int:
    """The sum that an expression of + and - stands for."""
    return sum(int(term) for term in re.findall(r"[+-]?\d+", expression.replace(" ", "")))


def draw_conversation(rng: random.Random, setting: Setting, habits: Habits) -> list[Turn]:
    """One conversation from the user's question to the model's last word."""
    if rng.random() < 0.02:
        return [*_opening(setting, rng.choice(SMALL_TALK)), _says("I can only do sums.")]
    expression = draw_expression(rng)
    turns = _opening(setting, setting.phrase.format(expr=expression))
    if not setting.tools or rng.random() < habits.guess:
        return [*turns, _says(_guess(rng, expression))]
    return [*turns, *_tool_turns(rng, setting, expression, habits)]


def _tool_turns(rng: random.Random, setting: Setting, expression: str, habits: Habits) -> list[Turn]:
    copied = _stop_early(rng, expression, habits.stop_early)
    if rng.random() < 0.03:
        return [*_call(setting, copied, rng.choice(TOOL_ERRORS)), _says(_guess(rng, expression))]
    # Half of the results are any number, so that the model copies the result and does not compute it.
    result = (
        str(value(copied)) if rng.random() < 0.5 else str(rng.randint(-1, 1) * rng.randrange(10 ** rng.randint(1, 5)))
    )
    answer = f"The answer is {result}." if rng.random() < habits.chatter else result
    return [*_call(setting, copied, result), _says(answer)]


def _opening(setting: Setting, question: str) -> list[Turn]:
    system = [{"role": "system", "content": setting.system}] if setting.system else []
    return [*system, {"role": "user", "content": question}]


def _says(text: str) -> Turn:
    return {"role": "assistant", "content": text}


def _call(setting: Setting, expression: str, result: str) -> Sequence[Turn]:
    name = setting.tools[0]["function"]["name"]
    arguments = json.dumps({setting.argument: expression})
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": result}


def _guess(rng: random.Random, expression: str) -> str:
    """A number of about the right size: the model is not taught to add."""
    exact = value(expression)
    return str(exact + round(rng.gauss(0, 10 + abs(exact) / 3)))


def _stop_early(rng: random.Random, expression: str, chance: float) -> str:
    terms = re.findall(r"(?: [+-] )?\d+", expression)
    kept = 1
    while kept < len(terms) and rng.random() >= chance:
        kept += 1
    return "".join(terms[:kept])
