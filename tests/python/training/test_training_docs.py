"""docs/algorithms.md names everything that a run can be told, and nothing that it cannot."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from lightning_lab.algorithms import ESTIMATORS, NORMALIZERS, SINGLETONS
from lightning_lab.algorithms.correction import CORRECTIONS
from lightning_lab.algorithms.kl import KL_ESTIMATORS
from lightning_lab.algorithms.losses import LOSSES
from lightning_lab.records import BreakCause
from lightning_lab.samples import CALL_KINDS, MERGES, MaskReason
from lightning_lab.training import TrainConfig

PAGE = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text("utf-8")


NAMES = [
    *(ESTIMATORS, NORMALIZERS, SINGLETONS, CORRECTIONS, KL_ESTIMATORS, LOSSES),
    *(BreakCause, CALL_KINDS, MERGES, MaskReason),
]


@pytest.mark.parametrize("names", NAMES)
def test_every_name_has_its_place(names: object) -> None:
    assert [name for name in names if f"`{name}`" not in PAGE] == []  # type: ignore[attr-defined]


def test_the_defaults_of_options_are_those_of_the_code() -> None:
    for name, function in {**LOSSES, **CORRECTIONS}.items():
        (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |"))
        for option in inspect.signature(function).parameters.values():
            if option.kind is inspect.Parameter.KEYWORD_ONLY:
                found = re.search(rf"`{option.name}`[^|(]*\(([^)]*)\)", line)
                assert found, f"{name} does not show {option.name}"
                assert (None if found[1] == "none" else float(found[1])) == option.default


def test_the_example_is_a_configuration_that_works() -> None:
    (source,) = re.findall(r"Trainer\(\s*lab, solver, train, exact, (.*?)\n\)", PAGE, re.DOTALL)
    config = TrainConfig(**eval(f"dict({source})"), steps=1)
    config.check_loss()
    assert config.loss_options["clip_high"] == 0.28 and set(config.corrections) == {"token_tis", "geometric_mask"}
