"""`Store`: the durable memory of a lab. One SQLite file."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any

from lightning_lab.records import Break, Call, Event, Floats, Rollout, Run, Sample, Step
from lightning_lab.store.errors import ReadOnlyError, StoreError
from lightning_lab.store.purge import wipe_log
from lightning_lab.store.reader import Reader, one
from lightning_lab.store.schema import Durability
from lightning_lab.store.transaction import Put
from lightning_lab.store.writer import Writer
from lightning_lab.store.writing import Writing


class Store:
    """One run store: an append-only event log, and tables that always agree with it.

    Writes return at once with a future of the event's ``seq``, which resolves after the commit that contains it; the
    order of puts is the order of commits. A put that cannot be written fails alone, in its future, with a
    `StoreError`. Records and their arrays must not be changed after they were put. Do not wait for a future inside a
    subscriber or a future's callback: both run in the writer thread.

    ``durability="normal"`` survives the death of every process at any moment; ``"fsync"`` also a power loss.

    >>> store.put_call(call).result()      # on disk now
    >>> store.calls(call.rollout_id)[-1]   # rebuilt exactly
    """

    def __init__(
        self,
        path: Path | str,
        *,
        durability: Durability = "normal",
        read_only: bool = False,
        writer: Writing | None = None,
    ) -> None:
        """Opens or creates. ``writer``: who writes, where another process has this store open for writing.

        Raises `StoreBusyError`, `NotARunError`, `SchemaVersionError`, or `StoreError`.
        """
        self.path = Path(path).absolute()
        self.read_only = read_only
        self._writer = writer if read_only or writer else Writer(self.path, durability)
        try:
            self._reader = Reader(self.path)
        except BaseException:
            if self._writer:
                self._writer.stop()
                self._writer.release()
            raise
        self._finalizer = weakref.finalize(self, _close, self._writer, self._reader)  # runs at exit, too

    # -- writes -------------------------------------------------------------------------------------------------------

    def put_run(self, run: Run) -> Future[int]:
        """Insert or update a run. Event kind ``run``."""
        return self._put("run", run)

    def put_rollout(self, rollout: Rollout) -> Future[int]:
        """Insert or update a whole rollout. Event kind ``rollout`` with its state, reward and 0-based ``row``.

        Once its state is terminal only ``step``, ``advantage`` and ``weight`` may change (`TerminalStateError`).
        """
        return self._put("rollout", rollout)

    def put_call(self, call: Call) -> Future[int]:
        """Insert a call, once. Event kind ``call``. Only what no earlier call of the attempt holds takes space."""
        return self._put("call", call)

    def mark_delivered(self, call_id: str) -> Future[int]:
        """The client has the last byte. Event kind ``delivered``. Raises `UnknownIdError` in the future."""
        return self._put("delivered", call_id)

    def put_samples(self, run_id: str, step: int, samples: Sequence[Sample], breaks: Sequence[Break]) -> Future[int]:
        """Store the samples of whole rollouts, replacing earlier ones of the same rollouts. Event kind ``samples``."""
        return self._put("samples", run_id, int(step), tuple(samples), tuple(breaks))

    def put_token_stats(
        self, run_id: str, step: int, rollout_id: str, sample_index: int, stats: Mapping[str, Floats]
    ) -> Future[int]:
        """Per-token numbers of one sample, each shape [len(sample.ids)]. Event kind ``token_stats``."""
        return self._put("token_stats", run_id, int(step), rollout_id, int(sample_index), dict(stats))

    def put_step(self, step: Step) -> Future[int]:
        """Insert or replace an optimiser step. Event kind ``step``."""
        return self._put("step", step)

    def put_event(
        self, kind: str, run_id: str, subject: str = "", data: Mapping[str, Any] | None = None
    ) -> Future[int]:
        """Append one line to the log. ``data``: JSON values; NaN and infinities become null.

        Without a ``run_id``, the event belongs to the run of the rollout that ``subject`` names, if it names one.
        """
        return self._put("any_event", kind, run_id, subject, dict(data or {}))

    def purge(self, before: float) -> int:
        """Forget what rollouts said that ended before a time (Unix seconds): their texts, calls, samples and ids.

        Rewards, weights and counts stay; rollouts of a run that still trains are left alone. Blocks until nothing of
        it is left in the store's files, and returns how many rollouts were purged. Event kind ``purge``.
        """
        seq = self._put("purge", float(before)).result()
        wipe_log(self.path)
        (event,) = self.events(after=seq - 1, limit=1)
        return int(event.data["rollouts"])

    def _put(self, method: str, *arguments: Any) -> Future[int]:
        if self._writer is not None:
            return self._writer.submit(Put(method, (time.time(), *arguments)))
        refused: Future[int] = Future()
        refused.set_exception(ReadOnlyError(f"The store {self.path} was opened for reading; nothing can be written."))
        return refused

    def subscribe(self, callback: Callable[[Sequence[Event]], None]) -> Callable[[], None]:
        """Have ``callback`` called in the writer thread after each commit, with the events just committed.

        Each event comes exactly once, in order. Be quick: the next commit waits. Errors are logged. Returns what ends
        the subscription. A read-only store has no events to tell.
        """
        return self._writer.subscribe(callback) if self._writer else lambda: None

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have ``callback`` called in the writer thread after each commit that has events; cheaper than `subscribe`
        where another process writes."""
        return self._writer.watch(callback) if self._writer else lambda: None

    def write_on(self, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
        """Have small calls that this thread puts written on its event loop, as it gets to it, and committed as ever.

        For a loop that puts many: two threads that both run Python slow each other down. Their futures are for tasks of
        the loop; whoever blocks the loop to wait for one waits for itself. Returns what ends that.
        """
        return self._writer.host(loop) if self._writer else lambda: None

    def flush(self) -> None:
        """Wait until everything put before is committed. Raises `DiskError` if it never will be."""
        if self._writer is None:
            return
        if self._writer.in_writer_thread():
            raise StoreError("flush() inside a subscriber or a future's callback would wait for itself.")
        self._writer.submit(None).result()

    def close(self) -> None:
        """Commit what was put, then close. Idempotent. Inside a subscriber it returns at once and closes soon."""
        self._finalizer.detach()
        _close(self._writer, self._reader)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- reads --------------------------------------------------------------------------------------------------------

    def runs(self) -> list[Run]:
        """All runs, oldest first."""
        return self._reader.runs()

    def run(self, run_id: str) -> Run:
        """Raises `UnknownIdError`."""
        run: Run = one(self._reader.runs(run_id), "run", run_id)
        return run

    def rollout(self, rollout_id: str) -> Rollout:
        """Raises `UnknownIdError`."""
        rollout: Rollout = one(self._reader.rollouts({"id": rollout_id}), "rollout", rollout_id)
        return rollout

    def rollouts(
        self,
        run_id: str | None = None,
        *,
        state: str | None = None,
        step: int | None = None,
        mode: str | None = None,
        group_id: str | None = None,
    ) -> list[Rollout]:
        """Those that match everything given, in creation order."""
        index = None if step is None else int(step)  # a data frame gives numpy integers, which SQLite does not take
        wanted = {"run_id": run_id, "state": state, "step": index, "mode": mode, "group_id": group_id}
        return self._reader.rollouts({name: value for name, value in wanted.items() if value is not None})

    def rollout_heads(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        """Those of the ids that are stored, in creation order, without output, verdict, error, stdout and stderr.

        For grids: the cost does not depend on how much agents said or on how many rollouts there are.
        """
        return self._reader.rollout_heads(rollout_ids)

    def calls(self, rollout_id: str, *, attempt: int | None = None) -> list[Call]:
        """Whole calls by attempt and ordinal. Their arrays are read-only."""
        return self._reader.calls(rollout_id, attempt)

    def samples(self, rollout_id: str) -> list[Sample]:
        """In the order in which they were put."""
        return self._reader.samples(rollout_id)

    def breaks(self, *, run_id: str | None = None, rollout_id: str | None = None) -> list[Break]:
        return self._reader.breaks(run_id, rollout_id)

    def token_stats(self, rollout_id: str) -> list[Mapping[str, Floats]]:
        """One mapping per sample index; empty where nothing was computed."""
        return self._reader.token_stats(rollout_id)

    def steps(self, run_id: str) -> list[Step]:
        """By index."""
        return self._reader.steps(run_id)

    def events(
        self,
        *,
        after: int = 0,
        run_id: str | None = None,
        kind: str | Collection[str] | None = None,
        limit: int = 10_000,
    ) -> list[Event]:
        """The log after ``seq == after``, at most ``limit`` lines; of one kind or of several."""
        return self._reader.events(after, run_id, [kind] if isinstance(kind, str) else kind, limit)

    def counts(self, run_id: str) -> dict[str, int]:
        """Rollouts by state, ``total``, ``infrastructure``, ``calls``, ``prompt_tokens``, ``sampled_tokens``.

        One look-up however large the run is. All 0 for a run without rollouts.
        """
        return self._reader.counts(run_id)

    def call_totals(self, rollout_ids: Sequence[str]) -> dict[str, tuple[int, int]]:
        """(calls, sampled tokens) of each rollout given; (0, 0) where there are none."""
        return self._reader.call_totals(rollout_ids)

    def last_event(self) -> int:
        """``seq`` of the last event; 0 where there is none. One look-up."""
        return self._reader.last_event()

    def called(self, run_id: str, *, after: int, upto: int) -> dict[str, tuple[int, int]]:
        """(calls, sampled tokens) of each rollout with a ``call`` event in ``after < seq <= upto``, as of now."""
        return self._reader.called(run_id, after, upto)

    def call_tokens(self, call_ids: Sequence[str]) -> dict[str, tuple[int, int]]:
        """(prompt tokens, sampled tokens) of each call given that is stored."""
        return self._reader.call_tokens(call_ids)

    def call_times(self, rollout_ids: Sequence[str]) -> dict[str, list[tuple[float, float, float]]]:
        """(arrived, started, finished) of every call of some rollouts, by rollout id: when their models worked."""
        return self._reader.call_times(rollout_ids)

    def last_finished(self, rollout_id: str) -> float | None:
        """When the rollout's latest call had its whole reply; None where it has no call."""
        return self._reader.last_finished(rollout_id)

    def merged(self, rollout_ids: Sequence[str]) -> dict[str, tuple[int, int, int | None]]:
        """(samples, breaks, oldest version among the tokens that train) of each rollout given, as its step stored them.

        None where no token trains.
        """
        return self._reader.merged(rollout_ids)

    def manifest(self) -> dict[str, Any]:
        """The manifest inside an exported run; empty in a live store (see the run folder)."""
        return self._reader.manifest()

    def vocabulary(self) -> dict[int, bytes]:
        """Token id → bytes, where the export carried it."""
        return self._reader.vocabulary()


def _close(writer: Writing | None, reader: Reader) -> None:
    if writer is None:
        reader.close()
    elif writer.in_writer_thread():  # also when the last reference to a store is dropped there
        threading.Thread(target=_close, args=(writer, reader), name="store-close").start()
    else:
        writer.stop()
        reader.close()
        writer.release()
