"""What recipes say to verl, asked of the verl that is installed: its own names, before anybody has eight GPUs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import lightning_lab
from lightning_lab.policy.engines.installing import located
from lightning_lab.policy.verl.driver import cpu_environment

PACKAGE = Path(lightning_lab.__file__).parent
RECIPES = sorted(path for path in (PACKAGE.parent / "recipes").glob("*.yaml") if "kind: verl" in path.read_text())
ASK = """
import sys, yaml
from lightning_lab.policy.verl.config import check_names
from lightning_lab.policy.verl.errors import SettingsError
from lightning_lab.policy.verl.settings import VerlSettings
for path in sys.argv[1:]:
    with open(path) as file:
        check_names(VerlSettings(**yaml.safe_load(file)["learner"]["options"]))
    print("known")
try:
    check_names(VerlSettings(engine={"ulysses": 2}))
except SettingsError as error:
    print("ulysses_sequence_parallel_size" in str(error))
"""


@pytest.mark.timeout(300)
def test_verl_knows_every_setting_of_the_recipes_and_lists_its_own_to_others(tmp_path: Path) -> None:
    (tmp_path / "lightning_lab").symlink_to(PACKAGE, target_is_directory=True)
    environment = {**os.environ, **cpu_environment(), "PYTHONPATH": str(tmp_path)}
    command = [located("verl").python, "-c", ASK, *RECIPES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["known", "known", "True"], done.stderr[-2000:]
