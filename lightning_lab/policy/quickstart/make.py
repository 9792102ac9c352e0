"""Make the quickstart's warm checkpoint: ``python -m lightning_lab.policy.quickstart.make [--out DIRECTORY]``.

One thread, a few minutes, the same result for the same seed and library versions. First the model learns to copy:
the expression into a tool call, the tool's result into the answer. Then it picks up the bad habits that the
quickstart's reinforcement learning removes.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import DynamicCache, GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention

from lightning_lab.policy.quickstart.conversations import Habits, Turn, draw_conversation, draw_expression, draw_setting
from lightning_lab.policy.quickstart.vocabulary import build_tokenizer

HERE = Path(__file__).parent
CHECKPOINT = HERE / "checkpoint"
CONTEXT_LENGTH = 1024
COPYING = Habits(guess=0.05, stop_early=0.0, chatter=0.02)
WARM = Habits(guess=0.38, stop_early=0.10, chatter=0.30)
IGNORED = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How long and how fast to train."""

    seed: int = 0
    repeat_steps: int = 600
    copying_steps: int = 600
    warm_steps: int = 120
    batch: int = 32
    learning_rate: float = 3e-3
    warmup_steps: int = 100


@dataclass(frozen=True, slots=True)
class Row:
    """One conversation as ids; ``labels`` equal ``ids`` where the assistant speaks, else `IGNORED`."""

    ids: list[int]
    labels: list[int]


def model_config(tokenizer: PreTrainedTokenizerFast) -> Qwen2Config:
    """Qwen2 at toy size; heads of 64 so that vLLM can serve it."""
    return Qwen2Config(
        vocab_size=math.ceil(len(tokenizer) / 64) * 64,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=True,
        initializer_range=0.08,  # copying emerges several times sooner than with the usual 0.02
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def new_model(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    """Untrained, but for two heads that look one and two tokens back."""
    model = Qwen2ForCausalLM(model_config(tokenizer))
    for head in range(2):
        wire_shift(model.model.layers[0].self_attn, head, head + 1)
    return model


def make_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """The tokenizer, learned from a sample of the conversations."""
    rng = random.Random(seed)
    texts = ["system user assistant tool\n"] * 10
    for _ in range(2000):
        setting = draw_setting(rng)
        turns = draw_conversation(rng, setting, COPYING)
        texts += [str(turn["content"]) for turn in turns]
        texts += [json.dumps(tool) for tool in setting.tools]
        texts += [json.dumps({"name": "calc", "arguments": {"expr": "1"}}) + "\n" for _ in setting.tools]
    return build_tokenizer(texts, HERE / "chat_template.jinja", CONTEXT_LENGTH)


def encode(tokenizer: PreTrainedTokenizerFast, turns: Sequence[Turn], tools: Sequence[object]) -> Row:
    """Render by the chat template; the assistant's words and its end of turn are what is learned."""
    text = tokenizer.apply_chat_template(list(turns), tools=list(tools) or None, tokenize=False)
    ids = list(tokenizer(text)["input_ids"])
    opening = tokenizer.encode("<|im_start|>assistant\n")
    labels = [IGNORED] * len(ids)
    speaking = False
    for i, token in enumerate(ids):
        if speaking:
            labels[i] = token
        if token == tokenizer.eos_token_id:
            speaking = False
        elif ids[i + 1 - len(opening) : i + 1] == opening:
            speaking = True
    return Row(ids, labels)


def wire_shift(attention: Qwen2Attention, head: int, distance: int) -> None:
    """Let a head start out looking ``distance`` tokens back, whatever the tokens are.

    Query and key biases are constant vectors, so that after rotary embedding their product depends on the distance
    alone: sum over frequencies f of cos(f * (distance - d)), largest at d = distance. A head that knows the previous
    token is half of an induction head; without this start it takes most of the training to appear.
    """
    width, strength, frequencies = 64, 5.5, 8
    angle = distance * torch.tensor([10_000 ** (-i / (width // 2)) for i in range(frequencies)])
    first = head * width
    with torch.no_grad():
        key, query = attention.k_proj.bias, attention.q_proj.bias
        key[first : first + frequencies] = strength
        query[first : first + frequencies] = strength * torch.cos(angle)
        query[first + width // 2 : first + width // 2 + frequencies] = -strength * torch.sin(angle)


def draw_repeat(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Row:
    """Noise, a piece, more noise, and the same piece again, which is what is learned: copying in its shortest form."""
    size = len(tokenizer)

    def noise(most: int) -> list[int]:
        return [rng.randrange(size) for _ in range(rng.randint(0, most))]

    piece = tokenizer.encode(draw_expression(rng)) if rng.random() < 0.75 else noise(24)
    before = [*noise(8), *tokenizer.encode(": "), *piece, *tokenizer.encode(" =<|im_end|>"), *noise(10)]
    before += tokenizer.encode(' "')
    after = [*piece, *tokenizer.encode('"}}\n')]
    return Row(before + after, [IGNORED] * len(before) + after)


def draw_batches(tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> Iterator[list[Row]]:
    """The whole training set, batch by batch. Conversations of one batch share their setting, and so a prefix."""
    rng = random.Random(recipe.seed)

    def repeats() -> list[Row]:
        return [draw_repeat(tokenizer, rng) for _ in range(recipe.batch)]

    def conversations(habits: Habits) -> list[Row]:
        setting = draw_setting(rng)
        return [encode(tokenizer, draw_conversation(rng, setting, habits), setting.tools) for _ in range(recipe.batch)]

    for _ in range(recipe.repeat_steps):
        yield repeats()
    for _ in range(recipe.copying_steps):
        yield conversations(COPYING)
        yield repeats()
    for _ in range(recipe.warm_steps):
        yield conversations(WARM)


def batch_loss(model: Qwen2ForCausalLM, rows: Sequence[Row], pad: int) -> torch.Tensor:
    """Mean cross-entropy of the learned tokens. The prefix that all rows share is computed once.

    A batch of few learned tokens (guesses without tools, mostly noise) counts less than its mean.
    """
    shared = shared_prefix(rows)
    longest = max(len(row.ids) for row in rows) - shared
    ids = torch.full((len(rows), longest), pad)
    labels = torch.full((len(rows), longest), IGNORED)
    for i, row in enumerate(rows):
        ids[i, : len(row.ids) - shared] = torch.tensor(row.ids[shared:])
        labels[i, : len(row.ids) - shared] = torch.tensor(row.labels[shared:])
    cache = DynamicCache() if shared else None
    if cache is not None:
        model.model(torch.tensor([rows[0].ids[:shared]]), past_key_values=cache, use_cache=True)
        for layer in cache.layers:
            layer.keys = layer.keys.expand(len(rows), -1, -1, -1)
            layer.values = layer.values.expand(len(rows), -1, -1, -1)
    hidden = model.model(ids, past_key_values=cache, use_cache=cache is not None).last_hidden_state
    learned = labels[:, 1:] != IGNORED
    logits = model.lm_head(hidden[:, :-1][learned])
    total = torch.nn.functional.cross_entropy(logits, labels[:, 1:][learned], reduction="sum")
    return total / max(len(logits), 12 * len(rows))


def shared_prefix(rows: Sequence[Row]) -> int:
    """Length of the longest run of first ids that all rows have in common, none of it learned."""
    first = min(rows, key=lambda row: row.ids).ids
    last = max(rows, key=lambda row: row.ids).ids
    length = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    learned = min(next(i for i, label in enumerate(row.labels) if label != IGNORED) for row in rows)
    return min(length, learned - 1)


def train(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> Iterator[float]:
    """Warm ``model`` up in place; yields the loss of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    total = recipe.repeat_steps + 2 * recipe.copying_steps + recipe.warm_steps
    for step, rows in enumerate(draw_batches(tokenizer, recipe)):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * min((step + 1) / recipe.warmup_steps, 1.02 - step / total)
        loss = batch_loss(model, rows, tokenizer.pad_token_id)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield float(loss.detach())


def make(out: Path, recipe: Recipe) -> None:
    """Train from nothing and write the checkpoint."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(recipe.seed)
    tokenizer = make_tokenizer(recipe.seed)
    model = new_model(tokenizer)
    start = time.monotonic()
    recent = 0.0
    for step, loss in enumerate(train(model, tokenizer, recipe)):
        recent = loss if step == 0 else 0.98 * recent + 0.02 * loss
        if step % 100 == 0:
            print(f"step {step:5d}  loss {recent:.4f}  {time.monotonic() - start:5.0f} s", flush=True)
    write(out, model, tokenizer)


def write(out: Path, model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """A Hugging Face directory that any version of transformers reads."""
    end = tokenizer.eos_token_id
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, eos_token_id=end, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    settings = out / "tokenizer_config.json"
    config = json.loads(settings.read_text())
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    settings.write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the quickstart's warm checkpoint.")
    parser.add_argument("--out", type=Path, default=CHECKPOINT)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    make(arguments.out, Recipe(seed=arguments.seed))


if __name__ == "__main__":
    main()
