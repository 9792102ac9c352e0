"""Run by the engine's own interpreter: a vLLM server that ends with the program that started it.

``python lightning_lab_launch.py ARGUMENTS-OF-THE-SERVER``. Standard input is the lifeline: when it closes, also because
the starter was killed, the whole process group ends. This folder stays on the module path, for what stands beside it.
"""

import os
import runpy
import signal
import threading


def _end_with_the_lifeline() -> None:
    while os.read(0, 1):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_lifeline, daemon=True).start()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
