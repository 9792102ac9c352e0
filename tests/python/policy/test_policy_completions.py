"""Raw prompts, text and ids, through the gateway to a real model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from lightning_lab.gateway import Gateway
from lightning_lab.policy.torch import TorchPolicy
from lightning_lab.store import Store


@pytest.fixture
def served(qwen_directory: Path, tmp_path: Path) -> Iterator[tuple[TorchPolicy, Store, httpx.Client]]:
    policy = TorchPolicy(qwen_directory, seed=1, max_batch=4)
    with Store(tmp_path / "s.sqlite") as store:
        gateway = Gateway(policy, store)
        gateway.start()
        access = gateway.open_rollout("r-1")
        headers = {"authorization": f"Bearer {access.key}"}
        with httpx.Client(base_url=access.url + "/v1", headers=headers, timeout=60) as client:
            yield policy, store, client
        gateway.close()
    policy.close()


def test_text_and_its_ids_are_the_same_prompt(served: tuple[TorchPolicy, Store, httpx.Client]) -> None:
    policy, store, client = served
    text = "once <|im_end|> upon é a 🙂"
    for prompt in (text, policy.encode(text).tolist()):
        answer = client.post("/completions", json={"model": "m", "prompt": prompt, "max_tokens": 5})
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] <= 5
    store.flush()
    first, second = store.calls("r-1")
    assert policy.decode(first.prompt_ids) == text
    assert np.array_equal(first.prompt_ids, second.prompt_ids)
    assert len(first.prompt_ids) < len(text.encode()), "a special token that the text spells is one token"
    assert np.isfinite(first.logprobs).all()


@pytest.mark.parametrize("prompt", ["", [], [[]], [1, 10**6], [1, 258], [-1], [2**40]])
def test_prompts_that_no_model_can_read_are_the_clients_fault(
    served: tuple[TorchPolicy, Store, httpx.Client], prompt: object
) -> None:
    _, _, client = served
    answer = client.post("/completions", json={"model": "m", "prompt": prompt, "max_tokens": 5})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "prompt"
    good = client.post("/completions", json={"model": "m", "prompt": "a", "max_tokens": 5})
    assert good.status_code == 200
