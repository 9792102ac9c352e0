"""What the doctor finds on machines, in clusters and for recipes, and what it says to do."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from lightning_lab.cli import main
from lightning_lab.cluster import Workers
from lightning_lab.notebook import doctor_machine as machine
from lightning_lab.notebook import doctor_network as network

RECIPES = Path(__file__).parents[3] / "recipes"


def a_driver(folder: Path, *lines: str) -> None:
    """An ``nvidia-smi`` that prints these lines."""
    program = folder / "nvidia-smi"
    program.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    program.chmod(0o755)


def test_installed_versions_are_within_the_declared_ranges() -> None:
    assert machine.versions().level == "ok"


def test_a_version_outside_of_its_range_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.metadata, "requires", lambda _: ["numpy>=99", "absent-package>=1"])
    found = machine.versions()
    assert found.level == "problem" and "numpy" in found.said and "wanted: >=99" in found.said
    assert "absent-package" not in found.said and found.action == "pip install -U lightning-lab"


def test_gpus_that_torch_does_not_see_are_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.gpus().said == "none; the embedded policy works on the CPU"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}:/bin:/usr/bin")
    a_driver(tmp_path, "NVIDIA A100-SXM4-80GB, 81920, 5")
    found = machine.gpus()
    assert found.level == "problem" and "A100-SXM4-80GB, 80 GiB" in found.said and "CUDA build" in found.action
    monkeypatch.setattr(machine, "find_spec", lambda _: None)
    assert machine.gpus().level == "ok"
    a_driver(tmp_path, "NVIDIA A100-SXM4-80GB, 81920, 60000", "NVIDIA A100-SXM4-80GB, 81920, 5")
    assert machine.gpus().level == "note" and "1 in use by somebody" in machine.gpus().said


def test_proxies_that_would_swallow_model_calls() -> None:
    assert network.proxies({}).level == "ok"
    found = network.proxies({"HTTP_PROXY": "http://proxy:3128", "NO_PROXY": "example.org"})
    assert (found.level, found.action) == ("problem", "export NO_PROXY=127.0.0.1,localhost")
    assert network.proxies({"https_proxy": "http://proxy:3128", "no_proxy": "localhost, 127.0.0.1"}).level == "ok"


def test_proxies_between_here_and_the_addresses_of_a_cluster() -> None:
    environment = {"HTTP_PROXY": "http://proxy:3128", "NO_PROXY": "127.0.0.0/8,.example.org"}
    found = network.proxies(environment, ["10.0.0.5", "head.example.org"])
    assert found.level == "problem" and "NO_PROXY does not name 10.0.0.5:" in found.said
    assert found.action == "export NO_PROXY=127.0.0.1,10.0.0.5,head.example.org,localhost"
    assert network.proxies({**environment, "NO_PROXY": "*"}, ["10.0.0.5"]).level == "ok"


def test_where_the_gateway_is_to_listen() -> None:
    here = network.own_address()
    assert network.gateway_address("127.0.0.1", 0, elsewhere=False).level == "ok"
    for host in ("127.0.0.1", "localhost", "0.0.0.0"):
        found = network.gateway_address(host, 0, elsewhere=True)
        assert found.level == "problem" and "means another machine" in found.said
        assert f'host="{here}"' in found.action and "gateway_url" in found.action
    found = network.gateway_address("198.51.100.7", 8090, elsewhere=True)
    assert found.level == "problem" and "cannot listen on 198.51.100.7" in found.said
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = network.gateway_address("127.0.0.1", port, elsewhere=False)
    assert (found.level, found.said) == ("problem", f"port {port} of 127.0.0.1 is taken")
    assert network.gateway_address("127.0.0.1", port, elsewhere=False).level == "ok"


def test_the_doctor_is_told_where_agents_and_the_cluster_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["doctor", "--runs", str(tmp_path / "runs"), "--host", "0.0.0.0", "--cluster", "http://127.0.0.1:9"]
    assert main(asked) == 1
    said = capsys.readouterr().out
    assert "PROBLEM  gateway: 0.0.0.0 means another machine to agents that run elsewhere" in said
    assert "PROBLEM  cluster: The Ray cluster's head does not answer at http://127.0.0.1:9" in said


def test_runs_on_a_network_file_system_are_a_problem() -> None:
    mounts = "/dev/vda / ext4 rw 0 0\nserver:/home /home nfs4 rw 0 0\ntmpfs /home/me/fast tmpfs rw 0 0\n"
    assert machine.file_system(Path("/home/me/runs"), mounts) == "nfs4"
    assert machine.file_system(Path("/home/me/fast/runs"), mounts) == "tmpfs"
    assert machine.file_system(Path("/homes"), mounts) == "ext4"
    assert machine.file_system(Path("/home"), mounts) in machine.NETWORK_FILE_SYSTEMS


def test_clusters() -> None:
    assert machine.ray_cluster("local", Workers()).level == "ok"
    found = machine.ray_cluster("http://127.0.0.1:9", Workers())
    assert found.level == "problem" and "does not answer" in found.said and "ray start --head" in found.action
    assert machine.ray_cluster("local", Workers(gpus=64)).level == "problem"


def test_the_doctor_refuses_a_recipe_that_this_machine_cannot_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = str(RECIPES / "qwen3_5_9b_swe.yaml")
    assert main(["doctor", "--runs", str(tmp_path / "runs"), "--recipe", recipe]) == 1
    said = capsys.readouterr().out
    assert "PROBLEM  cluster: 8 A100-80G GPUs are asked for" in said
    assert "ok       memory plan: 8.95 B parameters on 8 × 79 GiB: fits" in said
    assert main(["doctor", "--recipe", str(tmp_path / "none.yaml")]) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_the_doctor_loads_no_torch_for_its_look_at_the_machine() -> None:
    code = "import sys; import lightning_lab.notebook.doctor; print('torch' in sys.modules)"
    assert os.popen(f'{sys.executable} -c "{code}"').read().strip() == "False"
