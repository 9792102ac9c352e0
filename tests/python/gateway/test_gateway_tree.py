"""Threads, kinds and retries of calls."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import numpy as np
import pytest
from gateway_lab import Lab, Say, chat_body, tool_call
from test_gateway_replay import replay

TOOL = {"type": "function", "function": {"name": "f"}}


async def ask(lab: Lab, *messages: Any, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    turns = [{"role": role, "content": content} for role, content in messages]
    async with lab.client() as client:
        return await client.post(
            "/chat/completions", json={"model": "m", "messages": turns, **fields}, headers=headers or {}
        )


def places(lab: Lab) -> list[tuple[str, str]]:
    return [(call.thread, call.kind) for call in lab.calls()]


@pytest.mark.parametrize(
    ("main", "sub", "thread"),
    [
        ({"thread-id": "t-1"}, {"thread-id": "t-2", "x-codex-parent-thread-id": "t-1"}, "t-2"),
        ({"thread-id": "t-1"}, {"thread-id": "t-3", "x-openai-subagent": "review"}, "t-3"),
        ({"x-claude-code-session-id": "s"}, {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"}, "a"),
        ({"x-session-id": "s-1"}, {"x-session-id": "s-2", "x-parent-session-id": "s-1"}, "s-2"),
    ],
)
async def test_headers_tell_agents_apart(lab, main, sub, thread):
    for headers in (main, sub, main, sub):
        assert (await ask(lab, ("user", "same words"), headers=headers)).status_code == 200
    assert places(lab) == [("main", "main"), (thread, "sub_agent")] * 2


async def test_without_headers_the_replies_tell(lab):
    a, b = [("system", "A"), ("user", "q")], [("system", "B"), ("user", "q")]
    for _ in range(2):
        for history in (a, b):
            answer = (await ask(lab, *history, tools=[TOOL])).json()
            history += [("assistant", answer["choices"][0]["message"]["content"]), ("user", "more")]
    assert places(lab) == [("main", "main"), ("agent-1", "sub_agent")] * 2
    one, two, three, four = lab.calls()
    assert (three.parent_id, four.parent_id) == (one.id, two.id)


async def test_titles_and_summaries_are_told(lab):
    await ask(lab, ("user", "Generate a title for this conversation:\n"), ("user", "fix it"))
    await ask(lab, ("system", "S"), ("user", "fix it"), tools=[TOOL])
    await ask(lab, ("system", "Is this a new topic?"), ("user", "fix it"))
    await ask(
        lab,
        *(("system", "S"), ("user", "fix it"), ("assistant", "fix it")),
        ("user", "Create a detailed summary of the conversation so far."),
        tools=[TOOL],
    )
    await ask(lab, ("system", "S"), ("user", "Summary: fix it"), tools=[TOOL])
    assert [kind for _, kind in places(lab)] == ["side", "main", "side", "compaction", "main"]
    assert [thread for thread, kind in places(lab) if kind != "side"] == ["main"] * 3
    assert lab.calls()[3].parent_id == lab.calls()[1].id


async def test_a_codex_compaction_is_told_by_its_header(lab):
    await ask(lab, ("user", "q"), headers={"thread-id": "t", "x-openai-subagent": "compact"})
    assert [kind for _, kind in places(lab)] == ["compaction"]


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("claude-code", ["main"] * 5),
        ("codex", ["main"] * 5),
        ("opencode", ["side", *["main"] * 5]),
        ("mini-swe-agent", ["main"] * 5),
        ("langchain-chat", ["main"] * 5 + ["side"]),
    ],
)
async def test_recorded_harnesses_have_one_agent(make_lab, name, kinds):
    lab = make_lab(lambda _: "ok")
    await replay(lab, name)
    assert [kind for _, kind in places(lab)] == kinds
    assert {thread for thread, kind in places(lab) if kind == "main"} == {"main"}


async def test_equal_requests_in_parallel_are_two_calls(make_lab):
    lab = make_lab(lambda _: Say("ok", hold=True))
    both = [asyncio.create_task(lab.chat("same")) for _ in range(2)]
    await lab.until(lambda: lab.gateway.admission.in_flight == 2)
    lab.policy.release()
    answers = [(await one).json() for one in both]
    assert answers[0]["id"] != answers[1]["id"]
    assert [call.delivered for call in lab.calls()] == [True, True]
    assert [call.kind for call in lab.calls()] == ["main", "main"]
    await lab.chat("same")
    assert len(lab.calls()) == 3


async def test_a_request_that_broke_off_is_superseded_once(make_lab):
    lab = make_lab(lambda _: Say("ok", hold=True))
    first = asyncio.create_task(lab.chat("same"))
    await lab.until(lambda: lab.gateway.admission.in_flight == 1)
    first.cancel()
    await lab.until(lambda: len(lab.calls()) == 1)
    lab.policy.release()
    assert (await lab.chat("same")).status_code == 200
    assert (await lab.chat("same")).status_code == 200
    assert [(call.kind, call.delivered) for call in lab.calls()] == [
        ("undelivered", False),
        ("retry", True),
        ("main", True),
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_lost_answer_is_sent_again_and_stays_one_call(lab, monkeypatch, stream):
    """The client was gone when the last byte was written."""
    monkeypatch.setattr("lightning_lab.gateway.delivery.Delivery.finish", lose_first(lab))
    assert (await lab.chat("same", stream=True)).status_code == 500
    assert [call.delivered for call in lab.calls()] == [False]
    assert "same" in (await lab.chat("same", stream=stream)).text
    await lab.until(lambda: lab.calls()[0].delivered)
    [call] = lab.calls()
    assert len(lab.policy.sampled) == 1
    await lab.chat("same", stream=stream)
    assert len(lab.calls()) == 2
    assert np.array_equal(lab.calls()[1].prompt_ids, call.prompt_ids)


def lose_first(lab: Lab) -> Any:
    from lightning_lab.gateway.delivery import Delivery

    finish, lost = Delivery.finish, []

    async def losing(self: Delivery, reply: Any) -> bool:
        if lost:
            return await finish(self, reply)
        lost.append(self)
        return False

    return losing


async def test_a_client_that_says_it_retries_gets_the_same_answer(make_lab):
    lab = make_lab(lambda _: tool_call("f", {}))
    async with lab.client() as client:
        one, two = [
            (await client.post("/chat/completions", json=chat_body(), headers={"x-stainless-retry-count": str(n)}))
            for n in range(2)
        ]
    assert one.json()["choices"] == two.json()["choices"]
    [call] = lab.calls()
    assert call.delivered


async def test_sent_again_before_the_disconnect_is_seen_is_a_retry(make_lab):
    """By a client that does not say that it retries; a third request that nobody lost is a call of its own."""
    lab = make_lab(lambda _: Say("slow", hold=True))
    lost = asyncio.create_task(lab.chat())
    await lab.until(lambda: lab.gateway.admission.in_flight == 1)
    again = asyncio.create_task(lab.chat())
    await lab.until(lambda: lab.gateway.admission.in_flight == 2)
    lost.cancel()
    await lab.until(lambda: lab.policy.cancelled == 1)
    lab.policy.release()
    assert (await again).status_code == 200
    assert (await lab.chat()).status_code == 200
    assert [(call.kind, call.delivered) for call in await lab.settled()] == [
        ("undelivered", False),
        ("retry", True),
        ("main", True),
    ]


async def test_a_retry_ends_the_request_that_still_runs(make_lab):
    replies = iter([Say("slow", hold=True), Say("quick")])
    lab = make_lab(lambda _: next(replies))
    async with lab.client() as client:
        slow = asyncio.create_task(client.post("/chat/completions", json=chat_body()))
        await lab.until(lambda: lab.gateway.admission.in_flight == 1)
        headers = {"x-stainless-retry-count": "1"}
        quick = await client.post("/chat/completions", json=chat_body(), headers=headers)
        assert quick.json()["choices"][0]["message"]["content"] == "quick"
        assert (await slow).status_code == 409
    assert [(call.kind, call.delivered) for call in lab.calls()] == [("undelivered", False), ("retry", True)]
