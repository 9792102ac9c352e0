"""The script that makes the checkpoint: what it shows the model, and that it can be repeated."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import torch
from transformers import Qwen2ForCausalLM

from lightning_lab.policy.quickstart import make
from lightning_lab.policy.quickstart.conversations import (
    QUICKSTART_SETTING,
    Habits,
    could_be_a_task,
    draw_conversation,
    draw_expression,
    draw_setting,
    value,
)

GOOD = Habits(guess=0.0, stop_early=0.0, chatter=0.0)


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_every_chain_sum_could_be_a_task(seed: int) -> None:
    import reasoning_gym

    for row in reasoning_gym.create_dataset("chain_sum", size=3000, seed=seed):
        assert could_be_a_task(row["metadata"]["expression"])


def test_no_warm_start_expression_could_be_a_task() -> None:
    rng = random.Random(0)
    assert not any(could_be_a_task(draw_expression(rng)) for _ in range(20_000))


def test_no_warm_start_conversation_holds_a_task() -> None:
    """Neither training nor held-out prompts of the quickstart are in the warm start, whatever their seed."""
    rng = random.Random(0)
    for _ in range(2000):
        turns = draw_conversation(rng, draw_setting(rng), make.WARM)
        expressions = re.findall(r"\d+(?: [+-] \d+)+", str(next(turn for turn in turns if turn["role"] == "user")))
        assert not any(could_be_a_task(expression) for expression in expressions)


def test_value_is_the_sum() -> None:
    assert value("12 + 7 - 30") == -11
    assert value("5") == 5


def test_good_habits_copy_the_expression_and_the_result() -> None:
    rng = random.Random(3)
    for _ in range(200):
        user, *rest = draw_conversation(rng, QUICKSTART_SETTING, GOOD)
        if len(rest) != 3 or "rror" in rest[1]["content"]:
            continue
        called, result, answer = rest
        expression = str(user["content"]).split(": ")[1].removesuffix(" =")
        assert called["tool_calls"][0]["function"]["arguments"] == f'{{"expr": "{expression}"}}'
        assert answer["content"] == result["content"]


def test_only_what_the_assistant_says_is_learned() -> None:
    tokenizer = make.make_tokenizer(0)
    rng = random.Random(1)
    turns = next(t for t in (draw_conversation(rng, QUICKSTART_SETTING, GOOD) for _ in range(50)) if len(t) == 4)
    row = make.encode(tokenizer, turns, QUICKSTART_SETTING.tools)
    learned = tokenizer.decode([label for label in row.labels if label != make.IGNORED])
    call = turns[1]["tool_calls"][0]["function"]
    said = f'<tool_call>\n{{"name": "calc", "arguments": {call["arguments"]}}}\n</tool_call><|im_end|>'
    assert learned == f"{said}{turns[3]['content']}<|im_end|>"


def test_a_shared_prefix_changes_no_loss() -> None:
    tokenizer = make.make_tokenizer(0)
    torch.manual_seed(0)
    model = make.new_model(tokenizer)
    rng = random.Random(2)
    rows = [make.encode(tokenizer, draw_conversation(rng, QUICKSTART_SETTING, GOOD), QUICKSTART_SETTING.tools)] * 2
    rows = [*rows, make.encode(tokenizer, draw_conversation(rng, QUICKSTART_SETTING, GOOD), QUICKSTART_SETTING.tools)]
    assert make.shared_prefix(rows) > 50
    with torch.no_grad():
        together = float(make.batch_loss(model, rows, tokenizer.pad_token_id))
        total, count = 0.0, 0
        for row in rows:
            out = model(torch.tensor([row.ids]), labels=torch.tensor([row.labels]))
            learned = sum(label != make.IGNORED for label in row.labels)
            total, count = total + float(out.loss) * learned, count + learned
    assert together == pytest.approx(total / count, rel=1e-4)


def test_making_it_twice_gives_the_same_weights(tmp_path: Path) -> None:
    recipe = make.Recipe(repeat_steps=2, copying_steps=1, warm_steps=1, batch=4)
    for name in "ab":
        make.make(tmp_path / name, recipe)
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in "ab")
    assert first == second
    assert Qwen2ForCausalLM.from_pretrained(tmp_path / "a").config.hidden_size == 128
