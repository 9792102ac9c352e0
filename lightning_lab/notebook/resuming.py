"""Whether a run can go on, and from where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from lightning_lab.notebook.errors import ResumeError
from lightning_lab.notebook.parts import Parts
from lightning_lab.policy.base import Learner
from lightning_lab.records import Run
from lightning_lab.store import RunFolder
from lightning_lab.store.errors import UnknownIdError
from lightning_lab.training import LoopState, latest_checkpoint, load_checkpoint

MAY_DIFFER = frozenset(
    {"steps", "eval_every", "eval_n", "checkpoint_every", "keep_checkpoints", "drain_s"}
    | {"retries", "retry_wait_s", "infrastructure_limit", "infrastructure_window"}
)
"""Settings that do not decide what is learned."""


def earlier_run(parts: Parts, run_id: str) -> tuple[Run, RunFolder]:
    """The run's record and folder. Raises `ResumeError`."""
    try:
        run = parts.store.run(run_id)
    except UnknownIdError as error:
        raise ResumeError(
            f"This lab's store does not hold the run {run_id}. Open the lab it was made in: "
            f'll.Lab(policy=..., resume="{run_id}").'
        ) from error
    if run.kind != "fit":
        raise ResumeError(f"{run_id} is a run of kind {run.kind!r}; only runs of trainer.fit go on.")
    return run, RunFolder.open(parts.folder.path.parent / run_id)


def made_with(hashes: Mapping[str, str]) -> dict[str, str]:
    """What must be as it was: all but the model's weights, which a policy changes as it learns.

    A checkpoint brings them along, and checks that it is the same model at all; `last_state` looks where there is none.
    """
    return {name: value for name, value in hashes.items() if name != "model"}


def refuse_differences(run_id: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises `ResumeError`, naming each setting, hash or version that is not what the run was made with."""
    differ = [name for name in sorted(now) if name not in MAY_DIFFER and now[name] != before.get(name)]
    if differ:
        changes = "; ".join(f"{name}: {before.get(name)!r}, now {now[name]!r}" for name in differ)
        raise ResumeError(
            f"The run {run_id} cannot go on as another experiment ({changes}). "
            "Define harness, grader, tasks and trainer as they were, or start a new run with trainer.fit."
        )


def last_state(parts: Parts, run: Run, folder: RunFolder, model: str | None) -> LoopState:
    """Load the latest checkpoint into the policy; without one, the run starts again from the policy as it is.

    ``model``: the hash of its weights now. Raises `training.CheckpointError`, or `ResumeError` when they are not those
    that the run began with.
    """
    checkpoint = latest_checkpoint(folder.checkpoints)
    if checkpoint is not None:
        return load_checkpoint(cast(Learner, parts.policy), checkpoint, run_id=run.id)
    if parts.policy.version or model != folder.manifest()["hashes"].get("model"):
        raise ResumeError(
            f"The run {run.id} has no checkpoint, and the weights of this lab's policy are not those that it began "
            "with: the policy has learned since, or it is another model, or the run began when an earlier one had "
            "trained. Restart the kernel and open the lab with the run's model; if that does not help, start a new run "
            "with trainer.fit, with checkpoint_every=… in the trainer."
        )
    return LoopState(step=0, cursor=0, version=0, seed=run.settings["seed"], store_seq=0, run_id=run.id)
