"""Completions: raw prompts."""

from __future__ import annotations

from typing import Any

import numpy as np
import openai
import pytest
from gateway_lab import ScriptedPolicy, tool_call


def sdk(lab: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=lab.access.url + "/v1", api_key=lab.access.key)


async def test_a_text_prompt_is_not_dressed_as_a_conversation(make_lab):
    lab = make_lab(lambda prompt: prompt.upper())
    async with sdk(lab) as client:
        answer = await client.completions.create(model="m", prompt="once", logprobs=1)
    assert answer.choices[0].text == "ONCE"
    assert answer.choices[0].logprobs.tokens == ["O", "N", "C", "E", "<end>"]
    assert answer.choices[0].logprobs.text_offset == [0, 1, 2, 3, 4]
    [call] = await lab.settled()
    assert call.protocol == "completions"
    assert lab.policy.decode(call.prompt_ids) == "once"
    assert call.delivered


@pytest.mark.parametrize("prompt", [[104, 105], [[104, 105]], ["hi"]])
async def test_token_prompts_and_batches_of_one(make_lab, prompt):
    lab = make_lab(lambda prompt: prompt.upper())
    async with sdk(lab) as client:
        assert (await client.completions.create(model="m", prompt=prompt)).choices[0].text == "HI"
    assert np.array_equal(lab.calls()[0].prompt_ids, [104, 105])


async def test_streamed(make_lab):
    lab = make_lab(lambda _: "x" * 5000)
    async with sdk(lab) as client:
        stream = await client.completions.create(model="m", prompt="once", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "x" * 5000


async def test_tool_calls_stay_text(make_lab):
    said = "now: " + tool_call("f", {})
    lab = make_lab(lambda _: said)
    async with sdk(lab) as client:
        assert said in (await client.completions.create(model="m", prompt="once")).choices[0].text


async def test_several_prompts_are_refused(lab):
    async with sdk(lab) as client:
        with pytest.raises(openai.BadRequestError, match="Only one prompt"):
            await client.completions.create(model="m", prompt=["a", "b"])


async def test_a_policy_without_raw_text_says_so(lab, monkeypatch):
    monkeypatch.delattr(ScriptedPolicy, "encode")
    async with sdk(lab) as client:
        with pytest.raises(openai.BadRequestError, match="not raw text"):
            await client.completions.create(model="m", prompt="a")
        assert (await client.completions.create(model="m", prompt=[97])).choices
