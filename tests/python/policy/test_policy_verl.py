"""What a learner on verl decides without verl: its settings, how micro-batches are dealt, files of weights."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from importlib import metadata
from multiprocessing import Pipe
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import lightning_lab as ll
from lightning_lab.policy.base import LossRow, PolicyError, Seat
from lightning_lab.policy.engines.versions import EngineVersionError
from lightning_lab.policy.torch.checkpoint import CheckpointError
from lightning_lab.policy.torch.taught import TaughtTorchPolicy
from lightning_lab.policy.verl import VerlLearner, VerlSettings
from lightning_lab.policy.verl.driver import Driver
from lightning_lab.policy.verl.errors import SettingsError
from lightning_lab.policy.verl.export import WeightFiles
from lightning_lab.policy.verl.learner import dealt
from lightning_lab.policy.verl.process import DriverProcess
from lightning_lab.policy.vllm.places import places
from lightning_lab.records import Sample


def row(length: int, *, trains: bool = True) -> LossRow:
    mask = np.zeros(length, bool)
    mask[1:] = trains
    sample = Sample(
        rollout_id=f"r-{length}",
        ids=np.zeros(length, np.int32),
        mask=mask,
        logprobs=np.zeros(length, np.float32),
        versions=np.zeros(length, np.int32),
        segments=(),
    )
    return LossRow(sample=sample, advantage=1.0, token_weight=1.0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ranks": 3, "nodes": 2}, "each node must have as many"),
        ({"ranks": 0}, "at least one"),
        ({"strategy": "fsdp"}, "fsdp2, megatron"),
        ({"device": "gpu"}, "'cpu' or 'cuda'"),
        ({"optimizer": {"lr": 1e-4}}, "learning_rate of the trainer"),
        ({"engine": {"use_dynamic_bsz": True}}, "the lab's planner"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_starts(settings: dict[str, object], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        VerlSettings(**settings)  # type: ignore[arg-type]


def test_every_rank_gets_as_many_micro_batches_and_none_is_joined() -> None:
    batches = [[row(9)], [row(5), row(4)], [row(20)], [row(30, trains=False)], [row(3)], [row(7)]]
    ranks = dealt(batches, 2)
    assert [len(part) for part in ranks] == [3, 3]
    found = sorted([one.sample.rollout_id for one in rows] for part in ranks for rows in part if rows)
    assert found == sorted([one.sample.rollout_id for one in rows] for rows in batches if rows is not batches[3])
    assert [len(rows[0].sample.ids) for part in ranks for rows in part[:1]] == [20, 9]  # the dearest side by side


def test_fewer_micro_batches_than_ranks_are_divided() -> None:
    ranks = dealt([[row(8), row(6), row(5)]], 2)
    assert sorted(len(one.sample.ids) for part in ranks for rows in part for one in rows) == [5, 6, 8]
    assert all(sum(bool(rows) for rows in part) for part in ranks)
    assert dealt([[row(4, trains=False)]], 2) == [[], []]


def test_weights_are_written_in_files_of_a_bounded_size(tmp_path: Path) -> None:
    files = WeightFiles(tmp_path, file_bytes=100)
    weights = {f"w{index}": torch.full((10,), float(index)) for index in range(5)}
    for name, weight in weights.items():
        files.add(name, weight)
    files.close()
    places = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    assert sorted(set(places.values())) == [
        "model-00001.safetensors",
        "model-00002.safetensors",
        "model-00003.safetensors",
    ]
    for name, weight in weights.items():
        assert torch.equal(load_file(tmp_path / places[name])[name], weight)


def test_servers_get_the_gpus_of_their_ranks() -> None:
    seats = [Seat(socket.gethostname(), str(index)) for index in range(4)]
    assert places(seats, 4) == [{"CUDA_VISIBLE_DEVICES": str(index)} for index in range(4)]
    assert places(seats, 2) == [{"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2,3"}]
    assert places([Seat("elsewhere", "")], 1) == [{}]  # CPUs need no place
    with pytest.raises(PolicyError, match="fewer replicas"):
        places(seats, 5)
    with pytest.raises(PolicyError, match="elsewhere"):
        places([Seat("elsewhere", "0")], 1)


def test_a_checkpoint_of_other_ranks_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "verl.json").write_text('{"format": 1, "strategy": "fsdp2", "ranks": 4}')
    with pytest.raises(CheckpointError, match="ranks: 4, now 2"):
        VerlLearner("quickstart", ranks=2).load(tmp_path)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        VerlLearner("quickstart").load(tmp_path / "nowhere")


def test_one_line_of_the_notebook_says_who_learns() -> None:
    spec = ll.Policy.torch("quickstart", learner=ll.Learner.verl(2, engine={"param_offload": True}))
    assert spec == ll.Policy.torch("quickstart", learner=ll.Learner.verl(2, engine={"param_offload": True}))
    assert spec != ll.Policy.torch("quickstart")
    assert json.loads(json.dumps(spec.describe()))["learner"]["kind"] == "verl"
    policy = spec.build()
    assert isinstance(policy, TaughtTorchPolicy)
    assert isinstance(policy._teacher, VerlLearner)
    assert policy._teacher.settings.ranks == 2
    policy.close()


def test_an_interpreter_without_the_right_verl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    here, there = Pipe()
    with here, there:
        driver = Driver(there)
        monkeypatch.setattr(metadata, "version", none)
        with pytest.raises(PolicyError, match="has no verl"):
            driver.start(Path(), VerlSettings(), {})
        monkeypatch.setattr(metadata, "version", lambda _: "0.8.1")
        with pytest.raises(EngineVersionError, match=r"verl is in version 0\.8\.1 in .*works with >=0\.9,<0\.10"):
            driver.start(Path(), VerlSettings(), {})


def test_the_process_that_drives_ray_outlives_a_signal_and_ends_with_its_kernel() -> None:
    """A job that is ended gets a signal with all its processes; its lab closes the learner after that."""
    driver = DriverProcess(sys.executable)
    with pytest.raises(PolicyError, match="unheard"):
        driver.ask("unheard")
    os.kill(driver._process.pid, signal.SIGTERM)
    with pytest.raises(PolicyError, match="unheard"):
        driver.ask("unheard")
    assert driver.alive
    driver.close()
    assert not driver.alive
