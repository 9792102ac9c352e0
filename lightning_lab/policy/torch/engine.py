"""Continuous batching in one thread: new prompts join the running batch, finished rows leave it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lightning_lab.policy.base import PolicyError
from lightning_lab.policy.torch.forward import Reader
from lightning_lab.policy.torch.generation import Generation, Outbox
from lightning_lab.policy.torch.prefix import MIN_PREFIX, Match, PrefixCache, common_prefix
from lightning_lab.policy.torch.sampler import draw, sampled_distribution
from lightning_lab.records import Ids

_log = logging.getLogger(__name__)

FLUSH_S = 0.05
"""Tokens of an unfinished reply are delivered at most this late: waking an event loop costs more than a token."""
PREFILL_TOKENS = 4096
"""Padded tokens of one prefill pass, so that running rows are not kept waiting."""


class Engine:
    """Samples for every open generation. All public methods may be called from any thread."""

    def __init__(
        self,
        reader: Reader,
        *,
        max_batch: int,
        stop_ids: frozenset[int],
        decode: Callable[[Ids], str],
        version: int = 0,
    ) -> None:
        self._reader = reader
        self._prefixes = PrefixCache()
        self._max_batch = max_batch
        self._stop_ids = stop_ids
        self._decode = decode
        self.version = version
        self.weights = threading.RLock()
        """Held during each step; whoever changes weights holds it too."""
        self._inbox: deque[Generation] = deque()
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []
        self._wake = threading.Condition()
        self._ready = threading.Event()
        self._closing = False
        self._stale = False
        self._outbox = Outbox()
        self._flushed_at = 0.0
        self._last = np.zeros(max_batch, dtype=np.int64)
        self._positions = np.zeros(max_batch, dtype=np.int64)
        self._thread = threading.Thread(target=self._run, name="lightning-lab-engine", daemon=True)

    def start(self) -> None:
        """Start the thread. Sampling uses one core; the caller's number of torch threads stays as it is."""
        threads = torch.get_num_threads()
        self._thread.start()
        self._ready.wait()
        torch.set_num_threads(threads)

    def close(self) -> None:
        """Stop the thread; open generations get a `PolicyError`. Idempotent."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def submit(self, generation: Generation) -> None:
        """Queue a reply; it joins the batch before the next step."""
        with self._wake:
            if self._closing:
                raise PolicyError("The policy is closed and answers no more. Open the lab again.")
            self._inbox.append(generation)
            self._wake.notify()

    def cancel(self, generation: Generation) -> None:
        """Forget a reply; its row is free before the next step."""
        generation.cancelled = True
        with self._wake:
            self._wake.notify()

    def publish(self, version: int) -> None:
        """Sample with ``version`` from the next step on. No keys or values survive: running rows are read again."""
        with self.weights:
            self.version = version
            self._stale = True

    @property
    def open(self) -> int:
        """Replies that are queued or running."""
        return len(self._inbox) + len(self._waiting) + len(self._running)

    # The engine thread.

    def _run(self) -> None:
        # Asking first makes the setting this thread's own; otherwise a later one elsewhere would replace it.
        torch.get_num_threads()
        torch.set_num_threads(1)
        self._ready.set()
        while self._wait_for_work():
            try:
                with self.weights, torch.inference_mode():
                    self._drop_cancelled()
                    if self._stale:
                        self._restart_rows()
                    self._admit()
                    if self._running:
                        self._decode_step()
            except Exception as error:
                _log.exception("the engine failed in a step")
                self._fail_all(PolicyError(f"Sampling failed: {type(error).__name__}: {error}"))
            self._flush()
        self._fail_all(PolicyError("The policy was closed while it answered."))
        self._outbox.flush()

    def _wait_for_work(self) -> bool:
        with self._wake:
            while not (self._closing or self._inbox or self._waiting or self._running):
                self._wake.wait()
            while self._inbox:
                self._waiting.append(self._inbox.popleft())
            return not self._closing

    def _drop_cancelled(self) -> None:
        if any(generation.cancelled for generation in self._waiting):
            self._waiting = deque(generation for generation in self._waiting if not generation.cancelled)
        for row in reversed(range(len(self._running))):
            if self._running[row].cancelled:
                self._remove(row)

    def _restart_rows(self) -> None:
        self._stale = False
        self._prefixes.clear()
        self._reader.kv.clear()
        self._waiting.extendleft(reversed(self._running))
        self._running = []

    def _admit(self) -> None:
        while self._waiting and self._has_room(len(self._running) + 1, self._waiting[0].length + 1):
            self._prefill(*self._next_batch())

    def _next_batch(self) -> tuple[list[Generation], list[Match]]:
        """The longest waiting replies whose unread tokens fit one pass."""
        batch: list[Generation] = []
        matches: list[Match] = []
        longest = 0
        tallest = 0
        while self._waiting:
            ids = self._waiting[0].all_ids()
            tallest = max(tallest, len(ids) + 1)
            if batch and not self._has_room(len(self._running) + len(batch) + 1, tallest):
                break
            match = self._prefixes.find(ids)
            longest = max(longest, len(ids) - match.length)
            if batch and longest * (len(batch) + 1) > PREFILL_TOKENS:
                break
            batch.append(self._waiting.popleft())
            matches.append(match)
            if len(batch) == 1 and self._waiting and self._leads(ids, match):
                break
        return batch, matches

    def _has_room(self, rows: int, length: int) -> bool:
        running = int(self._positions[: len(self._running)].max(initial=0)) + 1
        return rows <= self._max_batch and self._reader.kv.fits(rows, max(length, running))

    def _leads(self, ids: Ids, match: Match) -> bool:
        """Whether the next reply would find more of its prompt known if this one were read first, alone."""
        following = self._waiting[0].all_ids()
        return common_prefix(ids, following) >= self._prefixes.find(following).length + 2 * MIN_PREFIX

    def _prefill(self, batch: list[Generation], matches: list[Match]) -> None:
        first = len(self._running)
        self._reader.kv.held = max(int(self._positions[:first].max(initial=0)), *(match.length for match in matches))
        self._running.extend(batch)
        for row, match in enumerate(matches, start=first):
            if match.length:
                self._reader.kv.put(row, match.span, match.length)
        rows = [generation.all_ids() for generation in batch]
        logits = self._reader.read(rows, [match.length for match in matches], first)
        for row, generation in enumerate(batch, start=first):
            self._positions[row] = generation.length
        if len(batch) == 1:
            self._remember(first)
        self._sample(logits, first)

    def _remember(self, row: int) -> None:
        length = int(self._positions[row])
        self._prefixes.add(self._running[row].all_ids()[:length], self._reader.kv.take(row, length))

    def _decode_step(self) -> None:
        self._make_room()
        rows = len(self._running)
        positions = self._positions[:rows]
        logits = self._reader.step(torch.from_numpy(self._last[:rows]), torch.from_numpy(positions))
        positions += 1
        self._sample(logits, 0)

    def _make_room(self) -> None:
        """Rows that have grown too long together: the last ones wait and are read again later."""
        while not self._has_room(len(self._running), 0):
            self._remember(len(self._running) - 1)
            self._waiting.appendleft(self._running.pop())

    def _sample(self, logits: Tensor, first: int) -> None:
        """Sample the next token of the rows from ``first`` on, and let finished ones leave."""
        rows = self._running[first : first + len(logits)]
        ids, logprobs = _choose(logits, rows)
        self._last[first : first + len(rows)] = ids
        done: list[int] = []
        for row, (generation, token, logprob) in enumerate(zip(rows, ids, logprobs, strict=True), start=first):
            if not math.isfinite(logprob):
                self._outbox.put(generation, PolicyError(_NOT_FINITE))
                done.append(row)
                continue
            generation.ids.append(token)
            generation.logprobs.append(logprob)
            generation.versions.append(self.version)
            reason = self._finish_reason(generation, token)
            if reason:
                self._outbox.put(generation, generation.take_chunk(reason))
                self._remember(row)
                done.append(row)
        for row in reversed(done):
            self._remove(row)

    def _finish_reason(self, generation: Generation, token: int) -> str | None:
        if token in self._stop_ids:
            return "stop"
        if generation.sampling.stop and self._ends_with_stop(generation):
            return "stop"
        return "length" if len(generation.ids) >= generation.limit else None

    def _ends_with_stop(self, generation: Generation) -> bool:
        # A stop text of n characters lies within the last n tokens, and the token before may complete a character.
        longest = max(len(stop) for stop in generation.sampling.stop)
        tail = self._decode(np.asarray(generation.ids[-longest - 4 :], dtype=np.int32))
        return any(stop in tail for stop in generation.sampling.stop)

    def _remove(self, row: int) -> None:
        """The last row takes the free slot, so that running rows stay contiguous."""
        moved = self._running.pop()
        last = len(self._running)
        if row != last:
            self._running[row] = moved
            self._last[row], self._positions[row] = self._last[last], self._positions[last]
            self._reader.kv.move(last, row, int(self._positions[row]))

    def _flush(self) -> None:
        now = time.monotonic()
        if now - self._flushed_at >= FLUSH_S:
            self._flushed_at = now
            for generation in self._running:
                if generation.sent < len(generation.ids):
                    self._outbox.put(generation, generation.take_chunk(None))
        self._outbox.flush()

    def _fail_all(self, error: PolicyError) -> None:
        with self._wake:
            lost = [*self._running, *self._waiting, *self._inbox]
            self._inbox.clear()
        self._waiting.clear()
        self._running = []
        for generation in lost:
            self._outbox.put(generation, error)


_NOT_FINITE = (
    "The model's output is not finite, so nothing can be sampled: its weights have diverged. "
    "Go back to a checkpoint and lower the learning rate."
)


def _choose(logits: Tensor, rows: list[Generation]) -> tuple[list[int], list[float]]:
    """One token per row from the row's own distribution: (ids, log-probs)."""
    samplings = [generation.sampling for generation in rows]
    greedy = [sampling.temperature <= 0 for sampling in samplings]
    device = logits.device
    temperature = torch.tensor([s.temperature if s.temperature > 0 else 1.0 for s in samplings], device=device)
    top_p = top_k = None
    if any(sampling.top_p < 1 for sampling in samplings):
        top_p = torch.tensor([sampling.top_p for sampling in samplings], device=device)
    if any(sampling.top_k > 0 for sampling in samplings):
        top_k = torch.tensor([sampling.top_k for sampling in samplings], device=device)
    uniforms = torch.tensor([next(generation.uniforms) for generation in rows], dtype=torch.float64, device=device)
    ids, logprobs = draw(sampled_distribution(logits, temperature, top_p, top_k), uniforms)
    if any(greedy):
        # Temperature 0 puts all mass on one token: log-prob 0, unless the logits themselves are broken.
        chosen = torch.tensor(greedy, device=device)
        best, best_ids = logits.float().max(dim=-1)
        ids = torch.where(chosen, best_ids, ids)
        logprobs = torch.where(chosen, best * 0, logprobs)
    return ids.tolist(), logprobs.tolist()
