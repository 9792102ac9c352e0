"""A sample token by token, as columns: what the strips of the Rollout page draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lightning_lab.notebook.columns import Columns
from lightning_lab.notebook.frames import MAX_FRAME_BYTES
from lightning_lab.notebook.requests import Reply
from lightning_lab.notebook.token_text import TokenText
from lightning_lab.records import SCHEMA_VERSION, Floats, Sample
from lightning_lab.samples import MaskReason

ROLES = ("prompt", "observation", "sampled", *(str(reason) for reason in MaskReason))
"""What a token is: read before the first reply, read between replies, trained, or sampled and masked for a reason."""
PROMPT, OBSERVATION, SAMPLED = range(3)
STATS = ("logprobs", "entropy", "ratio", "clipped", "loss")
"""What the learner computed; on the wire ``logprobs`` is called ``new_logprob``."""

ENVELOPE_BYTES = 16 * 1024
"""Kept free for the message around the columns."""
_FIXED_BYTES = 4 + 1 + 4 + 4 + 4 * len(STATS)


def sample_columns(
    samples: Sequence[Sample],
    stats: Sequence[Mapping[str, Floats]],
    text: TokenText,
    *,
    index: int,
    start: int = 0,
    max_bytes: int = MAX_FRAME_BYTES,
) -> Reply:
    """Tokens of ``samples[index]`` from ``start`` on, as many as fit into one message. Raises `IndexError`.

    ``stats``: per sample, as the store keeps them; a column that was not computed is left out.
    """
    sample = samples[index]
    known = stats[index] if index < len(stats) else {}
    texts = text.encoded(sample.ids[start:].tolist())
    stop = start + _fitting(texts, max_bytes - ENVELOPE_BYTES)
    here = slice(start, stop)
    columns = Columns()
    columns.numbers("id", "i32", sample.ids[here])
    columns.codes("role", token_roles(samples, index)[here], ROLES)
    columns.numbers("logprob", "f32", np.where(sample.mask, sample.logprobs, np.nan)[here])
    columns.numbers("version", "i32", sample.versions[here])
    for name in STATS:
        if name in known and len(known[name]) == len(sample.ids):
            columns.numbers("new_logprob" if name == "logprobs" else name, "f32", known[name][here])
    columns.encoded_texts("text", texts[: stop - start])
    header: dict[str, Any] = {
        "v": SCHEMA_VERSION,
        "sample": index,
        "from": start,
        "rows": stop - start,
        "tokens": len(sample.ids),
        "segments": [[s.call_id, s.start, s.stop] for s in sample.segments if s.stop > start and s.start < stop],
        "columns": columns.described,
    }
    return Reply(header, columns.buffers)


def token_roles(samples: Sequence[Sample], index: int) -> npt.NDArray[np.uint8]:
    """Per token a place in `ROLES`, shape [n]."""
    sample = samples[index]
    roles = np.full(len(sample.ids), OBSERVATION, np.uint8)
    if sample.segments:
        roles[: sample.segments[0].start] = PROMPT
    trained_before = {segment.call_id for earlier in samples[:index] for segment in earlier.segments}
    for segment in sample.segments:
        here = slice(segment.start, segment.stop)
        reason = _reason(sample, here, segment.call_id in trained_before)
        roles[here] = np.where(sample.mask[here], SAMPLED, ROLES.index(reason))
    return roles


def _reason(sample: Sample, here: slice, trained_before: bool) -> MaskReason:
    """Why the masked tokens of a call do not train. A sample counts its reasons; which call has which follows."""
    if trained_before:
        return MaskReason.SHARED
    if not sample.mask[here].any():
        for reason in (MaskReason.FILTERED, MaskReason.UNALIGNED):
            if sample.masked.get(reason):
                return reason
    return MaskReason.NO_LOGPROB


def _fitting(texts: Sequence[bytes], budget: int) -> int:
    """How many tokens fit; at least one, so that a reader gets on."""
    sizes = np.fromiter((len(item) for item in texts), np.int64, len(texts)) + (_FIXED_BYTES + 1)
    return max(min(1, len(texts)), int(np.searchsorted(np.cumsum(sizes), budget, side="right")))
