"""Rows of a micro-batch to tensors. Rows that begin alike share one reading of their beginning.

Worked example: 32 samples of one agent start with the same 200 tokens of instructions and tools and go on for 100
each. They become one prefix [1, 200] and parts [n, 100] that attend to it: 3,400 tokens instead of 9,600, and exactly
the same gradient. The prefix's keys and values are cut out of the graph; each part's backward pass adds to their
gradient, and one last backward pass takes the sum through the prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lightning_lab.policy.base import LossRow
from lightning_lab.policy.torch.forward import Forward, causal_mask
from lightning_lab.policy.torch.kv import KvStore
from lightning_lab.policy.torch.objective import Tokens
from lightning_lab.policy.torch.prefix import common_prefix
from lightning_lab.records import Floats, Mask

_SHARED = 64
"""Rows share a prefix if at least so many tokens are equal."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Rows that train something, whose first ``shared`` tokens are equal and predict nothing trained."""

    rows: Sequence[LossRow]
    shared: int


@dataclass(frozen=True, slots=True)
class Batch(Tokens):
    """Right-padded rows after a shared prefix; flat tensors run over the T trained tokens, row by row."""

    ids: Tensor
    """int64 [rows, tokens]: what follows the prefix, up to each row's last trained token."""
    row: Tensor
    position: Tensor
    """int64 [T]: where in ``ids`` the trained tokens are predicted from."""


class SharedPrefix(KvStore):
    """Keys and values of one reading of the prefix, shown to every row that follows it. Empty: rows see themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.length = 0
        self.reading = False
        self._computed: list[Tensor] = []
        self._shown: list[Tensor] = []

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if self.reading:
            self._computed += (keys, values)
        if not self.length:
            return keys, values
        rows = len(keys)
        shared_keys, shared_values = (
            block.expand(rows, -1, -1, -1) for block in self._shown[2 * layer : 2 * layer + 2]
        )
        return torch.cat((shared_keys, keys), dim=1), torch.cat((shared_values, values), dim=1)

    def cut(self, length: int) -> None:
        """The prefix is read: what follows collects gradients for it."""
        self.reading, self.length = False, length
        self._shown = [block.detach().requires_grad_(block.requires_grad) for block in self._computed]

    def backward(self) -> None:
        """Take the collected gradients through the prefix."""
        reached = [(block, shown.grad) for block, shown in zip(self._computed, self._shown, strict=True)]
        pairs = [(block, grad) for block, grad in reached if grad is not None]
        if pairs:
            torch.autograd.backward([block for block, _ in pairs], [grad for _, grad in pairs])


def trained_positions(row: LossRow) -> Mask:
    """Where a row's tokens train. The first token of a row has nothing that predicts it."""
    mask = row.sample.mask.copy()
    mask[:1] = False
    return mask


def clusters(rows: Sequence[LossRow]) -> list[Cluster]:
    """Rows that train anything, in groups that share a prefix; the last group shares none."""
    by_start: dict[bytes, list[LossRow]] = {}
    for row in rows:
        if trained_positions(row).any():
            by_start.setdefault(row.sample.ids[:_SHARED].tobytes(), []).append(row)
    found = [Cluster(members, _shared_length(members)) for members in by_start.values()]
    alone = [row for cluster in found if not cluster.shared for row in cluster.rows]
    return [cluster for cluster in found if cluster.shared] + ([Cluster(alone, 0)] if alone else [])


def parts(cluster: Cluster, max_tokens: int | None) -> list[list[LossRow]]:
    """The cluster's rows, shortest first, in parts of at most ``max_tokens`` padded tokens (or one row)."""
    ordered = sorted(cluster.rows, key=lambda row: int(np.flatnonzero(row.sample.mask)[-1]))
    found: list[list[LossRow]] = [[]]
    for row in ordered:
        length = int(np.flatnonzero(row.sample.mask)[-1]) - cluster.shared
        if found[-1] and max_tokens is not None and length * (len(found[-1]) + 1) > max_tokens:
            found.append([])
        found[-1].append(row)
    return found


def read_prefix(forward: Forward, cluster: Cluster, device: torch.device, dtype: torch.dtype) -> SharedPrefix:
    """What all rows of the cluster attend to."""
    kv = SharedPrefix()
    if not cluster.shared:
        return kv
    kv.reading = True
    ids = torch.from_numpy(cluster.rows[0].sample.ids[: cluster.shared].astype(np.int64)).to(device)
    positions = torch.arange(cluster.shared, device=device).unsqueeze(0)
    nowhere = torch.zeros(0, dtype=torch.long, device=device)
    forward(kv, ids.unsqueeze(0), positions, causal_mask(positions, cluster.shared, dtype), nowhere, nowhere)
    kv.cut(cluster.shared)
    return kv


def make_batch(rows: Sequence[LossRow], shared: int, device: torch.device) -> Batch:
    """Rows of one cluster."""
    trained = [np.flatnonzero(trained_positions(row)) for row in rows]
    longest = max(int(at[-1]) for at in trained) - shared
    ids = np.zeros((len(rows), longest), dtype=np.int64)
    for index, (row, at) in enumerate(zip(rows, trained, strict=True)):
        # The last trained token is only predicted, never read, and nothing after it matters.
        ids[index, : at[-1] - shared] = row.sample.ids[shared : at[-1]]
    counts = [len(at) for at in trained]
    return Batch(
        ids=torch.from_numpy(ids).to(device),
        row=torch.from_numpy(np.repeat(np.arange(len(rows)), counts)).to(device),
        position=torch.from_numpy(np.concatenate(trained) - shared - 1).to(device),
        **flat_columns(rows, trained, device),
    )


def flat_columns(
    rows: Sequence[LossRow], trained: Sequence[npt.NDArray[np.int64]], device: torch.device
) -> dict[str, Tensor]:
    """What a loss needs of the trained tokens, [T] each; ``trained``: their positions by row."""
    pairs = list(zip(rows, trained, strict=True))
    counts = [len(at) for at in trained]
    old = np.concatenate([_old_logprobs(row)[at] for row, at in pairs])
    weights = np.where(np.isfinite(old), np.repeat([row.token_weight for row in rows], counts), 0.0)
    calls = [_calls(row, at) for row, at in pairs]
    first = np.cumsum([0, *(int(of_row[-1]) + 1 for of_row in calls[:-1])])

    def tensor(values: object, dtype: type) -> Tensor:
        return torch.from_numpy(np.asarray(values, dtype=dtype)).to(device)

    return {
        "targets": tensor(np.concatenate([row.sample.ids[at] for row, at in pairs]), np.int64),
        "old_logprobs": tensor(np.nan_to_num(old, nan=0.0, posinf=0.0, neginf=0.0), np.float32),
        "sampler_logprobs": tensor(np.concatenate([row.sample.logprobs[at] for row, at in pairs]), np.float32),
        "advantages": tensor(np.repeat([row.advantage for row in rows], counts), np.float32),
        "weights": tensor(weights, np.float32),
        "sequences": tensor(
            np.concatenate([of_row + start for of_row, start in zip(calls, first, strict=True)]), np.int64
        ),
    }


def _calls(row: LossRow, at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Which of the row's calls each trained position belongs to; without segments, the row is one call."""
    stops = np.array([segment.stop for segment in row.sample.segments], np.int64)
    return np.asarray(np.searchsorted(stops, at, "right"), np.int64) if len(stops) else np.zeros(len(at), np.int64)


def trained_logits(forward: Forward, kv: SharedPrefix, batch: Batch, dtype: torch.dtype) -> Tensor:
    """Logits that predict the trained tokens, float32 [T, vocabulary], with their gradient."""
    rows, tokens = batch.ids.shape
    positions = torch.arange(kv.length, kv.length + tokens, device=batch.ids.device).unsqueeze(0).expand(rows, -1)
    mask = causal_mask(positions, kv.length + tokens, dtype)
    return forward(kv, batch.ids, positions, mask, batch.row, batch.position).float()


def token_logprobs(logits: Tensor, targets: Tensor, *, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
    """Log-probs of the targets [T] and entropies [T] of the distributions that predict them."""
    logprobs = torch.log_softmax(logits, dim=-1)
    with torch.set_grad_enabled(entropy_gradient):
        entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
    return logprobs.gather(1, targets.unsqueeze(1)).squeeze(1), entropy


def split(values: Floats, rows: Sequence[LossRow]) -> list[Floats]:
    """Flat numbers [T] back to arrays aligned with each row's ids; NaN where nothing trains."""
    aligned: list[Floats] = []
    start = 0
    for row in rows:
        mask = trained_positions(row)
        full = np.full(len(mask), np.nan, dtype=np.float32)
        stop = start + int(mask.sum())
        full[mask] = values[start:stop]
        start = stop
        aligned.append(full)
    return aligned


def _shared_length(rows: Sequence[LossRow]) -> int:
    """Common prefix of all rows that ends before anything trained is predicted; 0 where sharing does not pay."""
    if len(rows) < 2:
        return 0
    first = rows[0].sample.ids
    shared = min(common_prefix(first, row.sample.ids) for row in rows[1:])
    shared = min(shared, *(int(np.argmax(trained_positions(row))) - 1 for row in rows))
    return shared if shared >= _SHARED else 0


def _old_logprobs(row: LossRow) -> Floats:
    return row.sample.logprobs if row.old_logprobs is None else row.old_logprobs
