"""Forest → training rows: one sample per leaf, each sampled token trained at most once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from enum import StrEnum

import numpy as np

from lightning_lab.records import Call, Mask, Sample, Segment
from lightning_lab.samples.parents import Forest, Node


class MaskReason(StrEnum):
    """Why a sampled token does not train in this sample."""

    NO_LOGPROB = "no_logprob"
    """The engine gave no finite log-prob."""
    UNALIGNED = "unaligned"
    """Ids, log-probs and versions of the call have different lengths."""
    MISSING_IDS = "missing_ids"
    """An id of the call's prompt, or an earlier id of its reply, is missing."""
    SHARED = "shared"
    """Context here; it trains in the sample that completed first."""
    FILTERED = "filtered"
    """The call is of a class that does not train in this run."""
    OVER_BUDGET = "over_budget"
    """Behind the cut at `max_sample_tokens`."""


def rows(forest: Forest, kinds: Collection[str] | None = None) -> list[Sample]:
    """One sample per leaf, first completed first; a prefix shared by several leaves trains in the first of them.

    ``kinds``: the classes of calls that train; None: all.
    """
    trained: set[int] = set()
    samples = []
    for leaf in forest.leaves():
        path = forest.path(leaf)
        samples.append(_row(forest, path, trained, kinds))
        trained.update(path)
    return samples


def trained_tokens(sample: Sample) -> int:
    """Number of mask-1 tokens."""
    return int(np.count_nonzero(sample.mask))


def cut(sample: Sample, max_tokens: int) -> Sample:
    """The sample up to the last call that ends within ``max_tokens``.

    Tokens of later calls that trained are counted as ``over_budget``. When not even the first call fits, the sample
    keeps no ids at all. Raises ValueError if ``max_tokens`` < 1.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}; a sample needs at least one token.")
    if len(sample.ids) <= max_tokens:
        return sample
    kept = tuple(segment for segment in sample.segments if segment.stop <= max_tokens)
    stop = kept[-1].stop if kept else 0
    lost = int(np.count_nonzero(sample.mask[stop:]))
    masked = Counter(sample.masked)
    if lost:
        masked[MaskReason.OVER_BUDGET] += lost
    return replace(
        sample,
        ids=sample.ids[:stop],
        mask=sample.mask[:stop],
        logprobs=sample.logprobs[:stop],
        versions=sample.versions[:stop],
        segments=kept,
        masked=_plain(masked),
    )


def _row(forest: Forest, path: list[int], trained: set[int], kinds: Collection[str] | None) -> Sample:
    leaf = forest.nodes[path[-1]]
    ids = np.concatenate([leaf.call.prompt_ids, leaf.call.sampled_ids[: leaf.usable]])[: leaf.length].astype(np.int32)
    mask = np.zeros(len(ids), np.bool_)
    logprobs = np.zeros(len(ids), np.float32)
    versions = np.full(len(ids), -1, np.int32)
    segments: list[Segment] = []
    masked: Counter[str] = Counter()
    for index in path:
        node = forest.nodes[index]
        stop = node.length
        start = stop - node.usable
        segments.append(Segment(call_id=node.call.id, start=start, stop=stop))
        if index in trained:
            masked[MaskReason.SHARED] += node.usable
            continue
        good, reasons = _trainable(node, kinds)
        for reason, count in reasons.items():
            masked[reason] += count
        if good is None:  # all of it, as nearly always
            mask[start:stop] = True
            logprobs[start:stop] = node.call.logprobs[: node.usable]
            versions[start:stop] = node.call.versions[: node.usable]
        elif good.any():
            mask[start:stop] = good
            logprobs[start:stop][good] = node.call.logprobs[: node.usable][good]
            versions[start:stop][good] = node.call.versions[: node.usable][good]
    return Sample(
        rollout_id=leaf.call.rollout_id,
        ids=ids,
        mask=mask,
        logprobs=logprobs,
        versions=versions,
        segments=tuple(segments),
        masked=_plain(masked),
    )


def _trainable(node: Node, kinds: Collection[str] | None) -> tuple[Mask | None, dict[str, int]]:
    """Which usable sampled tokens of a call train (None: all), and how many of its sampled tokens do not, by reason."""
    call, usable = node.call, node.usable
    missing = len(call.sampled_ids) - usable
    if kinds is not None and call.kind not in kinds:
        return np.zeros(usable, np.bool_), {MaskReason.FILTERED: len(call.sampled_ids)}
    if not _aligned(call):
        return np.zeros(usable, np.bool_), {MaskReason.UNALIGNED: usable, MaskReason.MISSING_IDS: missing}
    good = np.isfinite(call.logprobs[:usable])
    lost = usable - int(np.count_nonzero(good))
    if not lost and not missing:
        return None, {}
    return good, {MaskReason.NO_LOGPROB: lost, MaskReason.MISSING_IDS: missing}


def _aligned(call: Call) -> bool:
    return len(call.sampled_ids) == len(call.logprobs) == len(call.versions)


def _plain(masked: Counter[str]) -> dict[str, int]:
    return {str(reason): count for reason, count in masked.items() if count}
