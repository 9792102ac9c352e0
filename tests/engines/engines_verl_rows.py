"""Rows that a learner meets, made on the spot."""

from __future__ import annotations

import numpy as np

from lightning_lab.policy.base import LossRow
from lightning_lab.records import Sample, Segment


def make_rows(count: int = 7) -> list[LossRow]:
    """Of all shapes: several calls, context between them, masked tokens, one row in which nothing trains."""
    rows = []
    for index in range(count):
        random = np.random.default_rng(index)
        length = 18 + 9 * index
        mask = random.random(length) < (0.0 if index == 3 else 0.6)
        mask[:6] = False
        middle = length // 2
        rows.append(
            LossRow(
                sample=Sample(
                    rollout_id=f"r-{index // 2}",
                    ids=random.integers(3, 600, length).astype(np.int32),
                    mask=mask,
                    logprobs=np.where(mask, random.normal(-6.0, 0.5, length), 0).astype(np.float32),
                    versions=np.where(mask, 0, -1).astype(np.int32),
                    segments=tuple(
                        Segment(call_id=f"c-{index}-{start}", start=start, stop=stop)
                        for start, stop in ((6, middle), (middle, length))
                    ),
                ),
                advantage=(-1.0) ** index * (0.5 + 0.1 * index),
                token_weight=1.0 / (count * max(1, int(mask.sum()))),
            )
        )
    return rows
