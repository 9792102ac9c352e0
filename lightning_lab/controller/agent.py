"""The child side: this process becomes the agent (or the grader), runs it, and writes down how it went.

Runs in a process that was forked for this one purpose and never returns. The report goes to a pipe as two JSON
lines: when the first line of agent code ran, and what came of it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import linecache
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from types import ModuleType
from typing import Any, NoReturn

from lightning_lab.controller.late_imports import late_ones
from lightning_lab.controller.limits import take_on
from lightning_lab.records import AgentResult

MAX_OUTPUT_BYTES = 4 << 20
"""A larger output is an error of the agent, not something to cut silently: graders compare it."""


def become(spec: Mapping[str, Any], payload: bytes, report: int) -> NoReturn:
    """Run what ``spec`` says and exit. ``report`` is the pipe's descriptor."""
    code = 1
    try:
        _settle(spec)
        if spec["sandbox"] is not None:
            _shut_in(spec, payload, report)
        code = _start_command(spec, report) if spec["kind"] == "command" else _run_function(spec, payload, report)
    except BaseException:
        _write(report, {"error": traceback.format_exc()})
    finally:
        os._exit(code)


def _settle(spec: Mapping[str, Any]) -> None:
    """Take on the environment of this rollout: variables, directory, signals, randomness, an empty ``__main__``."""
    os.environ.clear()
    os.environ.update(spec["env"])
    os.chdir(spec["cwd"])
    tempfile.tempdir = None
    take_on(spec["limits"])
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.modules["__main__"] = ModuleType("__main__")
    sys.argv = [""]
    reseed()


def _shut_in(spec: Mapping[str, Any], payload: bytes, report: int) -> NoReturn:
    """Go on in a sandbox (`sandboxed`), as a new program: spec and payload go there in a file without a name."""
    given = os.memfd_create("agent", 0)
    with open(given, "wb", closefd=False) as file:
        file.write(json.dumps(dict(spec)).encode() + b"\n" + payload)
    os.lseek(given, 0, os.SEEK_SET)
    os.set_inheritable(report, True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the polite end of a time-out is for the agent, not for bubblewrap
    argv = [*spec["sandbox"]["argv"], str(given), str(report)]
    os.execve(argv[0], argv, {**spec["env"], "PYTHONPATH": spec["sandbox"]["package"]})


def reseed() -> None:
    """Forks share their parent's generators: without this, the rollouts of a group would draw the same numbers."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].seed()


def _start_command(spec: Mapping[str, Any], report: int) -> int:
    argv = spec["argv"]
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these; a program expects the default
        signal.signal(number, signal.SIG_DFL)
    _write(report, {"started_at": time.time()})
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        _write(report, {"error": f"{argv[0]!r} could not be started: {error.strerror}."})
        return 127


def _run_function(spec: Mapping[str, Any], payload: bytes, report: int) -> int:
    _show_cells(spec["sources"])
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    try:
        function, *arguments = pickle.loads(payload)
        if "result" in spec:
            arguments.append(AgentResult(**spec["result"]))
        _write(report, {"started_at": time.time()})
        line, code = _encode(spec["kind"], _call(function, arguments)), 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        line = {"error": f"The agent called sys.exit({stop.code!r})."} if code else {"output": None}
    except BaseException as error:
        line, code = {"error": _traceback(error)}, 1
    _flush()
    _write(report, {**line, "late_imports": late_ones()})
    return code


def _call(function: Callable[..., Any], arguments: list[Any]) -> Any:
    value = function(*arguments)
    return asyncio.run(_wait_for(value)) if inspect.isawaitable(value) else value


async def _wait_for(value: Awaitable[Any]) -> Any:
    return await value


def _encode(kind: str, value: Any) -> dict[str, Any]:
    """The report line of a returned value."""
    if kind == "grader":
        return _encode_reward(value)
    line = {"output": to_json(value)}
    size = len(json.dumps(line))
    if size > MAX_OUTPUT_BYTES:
        return {"error": f"The harness returned {size} bytes; the limit is {MAX_OUTPUT_BYTES}. Write files instead."}
    return line


def _encode_reward(value: Any) -> dict[str, Any]:
    """Numbers, also those of numpy and torch, as a float; everything else as words for the verdict."""
    try:
        plain = value.item() if hasattr(value, "item") else value
        if isinstance(plain, bool | int | float):
            return {"reward": float(plain)}
    except (ValueError, RuntimeError, OverflowError):  # more than one number, or an integer beyond all floats
        pass
    return {"unusable": "None" if value is None else f"{type(value).__name__} {_text(value)[:200]!r}"}


def to_json(value: Any) -> Any:
    """A JSON value: models and data classes by their fields, everything else that JSON lacks as text."""
    try:
        return json.loads(json.dumps(value, default=_plain))
    except (TypeError, ValueError, RecursionError):
        return _text(value)


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    return _text(value)


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:
        return object.__repr__(value)


def _traceback(error: BaseException) -> str:
    """The traceback from the agent's own first frame on."""
    frames = following = error.__traceback__
    while following is not None:
        if following.tb_frame.f_code.co_filename == __file__:
            frames = following.tb_next
        following = following.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, frames))
    except Exception:  # an exception whose own text raises
        return f"{type(error).__name__} (its message cannot be shown)\n" + "".join(traceback.format_tb(frames))


def _show_cells(sources: Mapping[str, str]) -> None:
    """Notebook cells have no file here: give `traceback` and `inspect` their text."""
    for name, text in sources.items():
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue


def _write(report: int, line: Mapping[str, Any]) -> None:
    data = memoryview(json.dumps(line).encode() + b"\n")
    while data:
        data = data[os.write(report, data) :]
