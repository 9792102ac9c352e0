"""The program behind a cell: what it uses of earlier cells, and nothing else."""

from __future__ import annotations

import pytest

from lightning_lab.cluster import ProgramError, program_of


def test_a_program_has_the_cells_that_made_what_it_uses_in_order() -> None:
    earlier = [
        "import lightning_lab as ll",
        "x = 1",
        "unused = 2",
        "%matplotlib inline\ndef f():\n    return g(x)",
        "%%bash\nls",
        "def g(y): return y",
        "!pip list",
    ]
    program = program_of("print(f(), ll)", earlier)
    assert program == (
        "import lightning_lab as ll\n\nx = 1\n\ndef f():\n    return g(x)\n\ndef g(y): return y\n\nprint(f(), ll)\n"
    )


def test_the_latest_cell_that_binds_a_name_counts() -> None:
    assert program_of("print(x)", ["x = 1", "x = 2", "y = x"]) == "x = 2\n\nprint(x)\n"
    assert program_of("print(x)", ["x = 1", "x += 1"]) == "x = 1\n\nx += 1\n\nprint(x)\n"
    assert program_of("print(x)", ["x = 1", "for x in range(3): pass"]) == "for x in range(3): pass\n\nprint(x)\n"


def test_an_earlier_training_of_the_same_name_stays_behind() -> None:
    earlier = ["lab = 1", "trainer = T(lab)\nrun = trainer.fit(steps=3)"]
    assert program_of("trainer = T(lab)\nrun = trainer.fit(steps=9)", earlier).count("fit") == 1


def test_a_program_is_itself_python_that_runs() -> None:
    names: dict[str, object] = {}
    exec(program_of("result = twice(start)", ["start = 20 + 1", "def twice(n): return 2 * n"]), names)
    assert names["result"] == 42


def test_a_cell_that_is_no_python_is_not_sent() -> None:
    with pytest.raises(ProgramError, match=r"no Python, so it was not sent: .* \(line 1\)"):
        program_of("trainer.fit(", [])
