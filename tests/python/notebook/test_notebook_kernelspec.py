"""The kernelspec preloads the library and never creates a lab."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from notebook_kernels import REPOSITORY, Kernel


def test_the_kernel_starts_with_the_library_loaded_and_without_a_lab(tmp_path: Path) -> None:
    spec = json.loads((REPOSITORY / "kernels" / "lightning-lab" / "kernel.json").read_text())
    assert spec["argv"][0] == "python" and spec["language"] == "python" and spec["display_name"] == "Lightning Lab"
    kernel = Kernel(tmp_path, argv=[sys.executable, *spec["argv"][1:]])
    try:
        code = "import sys, time\nwhile 'lightning_lab.notebook' not in sys.modules: time.sleep(0.05)\n"
        kernel.run(code)
        code = "from lightning_lab.notebook.opening import OneOpenLab; import os; print(OneOpenLab._open, os.listdir())"
        assert kernel.run(code).startswith("None") and "runs" not in kernel.run(code)
    finally:
        kernel.close()
