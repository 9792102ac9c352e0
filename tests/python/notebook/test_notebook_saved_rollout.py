"""A saved rollout view of a real agent: small, with tokens, and answering what a lab would answer."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from PIL import Image

import lightning_lab as ll
from lightning_lab.notebook.strip_picture import GAP, LINE, WIDTH
from lightning_lab.notebook.views import MAX_VIEW_BYTES, MIME_TYPE

RUN = Path(__file__).parents[2] / "data" / "agents.llab"


def answers(view: dict[str, Any], method: str) -> list[dict[str, Any]]:
    return [answer for answer in view["answers"] if answer["method"] == method]


@pytest.mark.parametrize("name", ["r-opencode-0", "r-claude-code-0", "r-openai-agents-2", "r-langchain-0"])
def test_it_holds_tokens_weights_and_both_sides_of_breaks_within_the_limit(name: str) -> None:
    rollout = ll.load(str(RUN)).rollout(name)
    bundle = rollout.bundle()
    assert len(orjson.dumps(bundle)) <= MAX_VIEW_BYTES
    view, samples = bundle[MIME_TYPE], rollout.samples()
    assert len(answers(view, "weights")) == 1
    assert len(answers(view, "sides")) == len(rollout.breaks())
    if not samples:
        assert answers(view, "tokens") == []
        return
    fullest = max(range(len(samples)), key=lambda i: int(samples[i].mask.sum()))
    [first, *_] = answers(view, "tokens")
    assert first["params"] == {"id": name, "sample": fullest, "from": 0}
    [column] = [column for column in first["result"]["columns"] if column["name"] == "id"]
    ids = np.frombuffer(base64.b64decode(first["buffers"][column["buffer"]]), np.int32)
    assert len(ids) > 0
    assert np.array_equal(ids, samples[fullest].ids[: len(ids)])


def test_without_the_extension_there_is_a_picture_of_the_samples() -> None:
    rollout = ll.load(str(RUN)).rollout("r-opencode-0")
    html = rollout.bundle()["text/html"]
    [encoded] = re.findall(r'<img alt="samples by role"[^>]* src="data:image/png;base64,([^"]+)">', html)
    picture = Image.open(io.BytesIO(base64.b64decode(encoded)))
    assert picture.size == (WIDTH, len(rollout.samples()) * (LINE + GAP) - GAP)
    assert "<table>" in html and not re.search(r"<(script|style|svg)|style=|class=", html)
