"""The real `openai-agents` library, unmodified, with a calculator tool."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from gateway_lab import tool_call

os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"

import agents
import openai


@agents.function_tool
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    left, operator, right = expression.split()
    return str(int(left) * int(right) if operator == "*" else int(left) + int(right))


def solve(prompt: str) -> str:
    """Asks the calculator, then says what it said."""
    result = re.search(r"\[tool\](.*?)<end>", prompt)
    if result:
        return f"The answer is {result[1]}."
    question = re.search(r"(\d+ [*+] \d+)", prompt)
    assert question
    return "<think>use the tool</think>" + tool_call("calculator", {"expression": question[1]})


@pytest.fixture
def model(make_lab: Any, request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    lab = make_lab(solve)
    client = openai.AsyncOpenAI(base_url=lab.access.url + "/v1", api_key=lab.access.key)
    kind = {"responses": agents.OpenAIResponsesModel, "chat": agents.OpenAIChatCompletionsModel}[request.param]
    yield lab, kind(model="any", openai_client=client)


def solver(model: Any) -> agents.Agent[None]:
    return agents.Agent(name="solver", instructions="Use the calculator.", tools=[calculator], model=model)


def check(lab: Any, protocol: str) -> None:
    calls = lab.calls()
    assert [call.protocol for call in calls] == [protocol, protocol]
    assert [call.reply.content for call in calls] == ["", "The answer is 42."]
    first, second = calls
    assert second.messages[: len(first.messages)] == first.messages
    assert second.messages[-1].tool_call_id == first.reply.tool_calls[0]["id"]
    assert second.messages[-1].content == "42"


@pytest.mark.parametrize("model", ["responses", "chat"], indirect=True)
async def test_a_tool_is_called_and_its_result_comes_back(model, request):
    lab, client = model
    result = await agents.Runner.run(solver(client), "What is 6 * 7?")
    assert result.final_output == "The answer is 42."
    check(lab, request.node.callspec.params["model"])
    assert all(call.delivered for call in await lab.settled())


@pytest.mark.parametrize("model", ["responses", "chat"], indirect=True)
async def test_streamed_it_is_the_same(model, request):
    lab, client = model
    result = agents.Runner.run_streamed(solver(client), "What is 6 * 7?")
    async for _ in result.stream_events():
        pass
    assert result.final_output == "The answer is 42."
    check(lab, request.node.callspec.params["model"])
    await lab.until(lambda: all(call.delivered for call in lab.calls()))


async def test_the_library_finds_the_gateway_by_its_environment(make_lab, monkeypatch):
    lab = make_lab(solve)
    monkeypatch.setenv("OPENAI_BASE_URL", lab.access.url + "/v1")
    monkeypatch.setenv("OPENAI_API_KEY", lab.access.key)
    monkeypatch.setattr(agents.models._openai_shared, "_default_openai_client", None)
    result = await agents.Runner.run(agents.Agent(name="solver", tools=[calculator]), "What is 6 * 7?")
    assert result.final_output == "The answer is 42."
    check(lab, "responses")
