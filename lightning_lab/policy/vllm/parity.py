"""Whether learner and servers agree: the same tokens, the same weights, two programs' log-probs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from lightning_lab.policy.base import Chunk, LossRow
from lightning_lab.records import Floats, Ids, Sample, Sampling, Segment

PROBES = 4
PROMPT_TOKENS = 256
PROBE_TOKENS = 16
PROBE_SAMPLING = Sampling(temperature=1.0)


def probes_of(micro_batches: Iterable[Sequence[LossRow]]) -> list[Ids]:
    """Beginnings of what was just learned: up to `PROBES` prompts of at most `PROMPT_TOKENS` ids."""
    prompts: list[Ids] = []
    for row in (row for rows in micro_batches for row in rows):
        begins = np.flatnonzero(row.sample.mask)
        if len(begins) and begins[0] > 0:
            prompts.append(row.sample.ids[: min(int(begins[0]), PROMPT_TOKENS)])
        if len(prompts) == PROBES:
            break
    return prompts


def probe_sample(prompt: Ids, reply: Chunk) -> Sample:
    """Prompt and reply as the learner reads them."""
    start, stop = len(prompt), len(prompt) + len(reply.ids)
    zeros = np.zeros(start, np.float32)
    return Sample(
        rollout_id="probe",
        ids=np.concatenate([prompt, reply.ids]).astype(np.int32),
        mask=np.arange(stop) >= start,
        logprobs=np.concatenate([zeros, reply.logprobs]),
        versions=np.concatenate([np.full(start, -1, np.int32), reply.versions]),
        segments=(Segment(call_id="probe", start=start, stop=stop),),
    )


def parity(samples: Sequence[Sample], learned: Sequence[Floats]) -> Mapping[str, float]:
    """Mean and largest |Δ| of the log-probs (nats), over all sampled tokens; nothing where none was sampled."""
    gaps = [np.abs(sample.logprobs - found)[sample.mask] for sample, found in zip(samples, learned, strict=True)]
    flat = np.concatenate(gaps) if gaps else np.empty(0, np.float32)
    if not len(flat):
        return {}
    return {"parity_logprob_mean": float(flat.mean()), "parity_logprob_max": float(flat.max())}
