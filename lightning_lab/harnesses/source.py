"""What a function is made of: its source, its version, and the modules it leans on."""

from __future__ import annotations

import hashlib
import inspect
import json
import linecache
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import lightning_lab


def source_of(target: Callable[..., Any] | type) -> str:
    """The source text of a function or class, also of one defined in a notebook cell; empty if there is none."""
    try:
        return inspect.getsource(target)
    except (OSError, TypeError):
        return ""


def version_of(target: Callable[..., Any] | type, settings: Mapping[str, Any]) -> str:
    """Twelve hex digits over the source (the bytecode where there is no source) and the settings."""
    content = source_of(target).encode() or _bytecode(target)
    return digest(content, json.dumps(settings, sort_keys=True, default=str).encode())


def digest(*parts: bytes) -> str:
    """A short hash of the parts, in order; lengths are hashed too, so parts cannot flow into each other."""
    state = hashlib.sha256()
    for part in parts:
        state.update(len(part).to_bytes(8, "big") + part)
    return state.hexdigest()[:12]


def referred_modules(target: Callable[..., Any] | type) -> tuple[str, ...]:
    """Modules that the function will import when it is unpickled, by top-level name; the standard library left out."""
    names: set[str] = set()
    for value in _referred(target, depth=3):
        module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        module = module or type(value).__module__
        if isinstance(module, str):
            names.add(module.partition(".")[0])
    return tuple(sorted(name for name in names if _is_importable(name)))


def own_files() -> tuple[tuple[str, int], ...]:
    """The files of all loaded modules that are neither installed nor ours, with their times of change (ns)."""
    return tuple((name, Path(name).stat().st_mtime_ns) for name in _own_names(len(sys.modules)) if Path(name).is_file())


@lru_cache(maxsize=1)
def _own_names(_loaded: int) -> tuple[str, ...]:
    """Looked up again only when more modules are loaded: there are thousands."""
    files = {str(getattr(module, "__file__", None) or "") for module in [*sys.modules.values()]}
    return tuple(sorted(name for name in files if name.endswith(".py") and not name.startswith(_FOREIGN_FOLDERS)))


def cell_sources(target: Callable[..., Any] | type) -> dict[str, str]:
    """Source text by file name, for code that has no file (notebook cells): lets a traceback elsewhere show lines."""
    names = {value.__code__.co_filename for value in _referred(target, depth=3) if isinstance(value, FunctionType)}
    return {name: "".join(linecache.getlines(name)) for name in names if not Path(name).is_file()}


def functions_in(target: Callable[..., Any] | type) -> list[FunctionType]:
    """The function itself, or the methods of a class."""
    if isinstance(target, type):
        return [value for value in vars(target).values() if isinstance(value, FunctionType)]
    target = inspect.unwrap(target)
    return [target] if isinstance(target, FunctionType) else []


def named_values(function: FunctionType) -> dict[str, Any]:
    """The globals and closure variables that a function uses, by name."""
    used = {name: function.__globals__[name] for name in _global_names(function.__code__) & set(function.__globals__)}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            used[name] = cell.cell_contents
        except ValueError:  # a variable that has no value yet
            continue
    return used


def _referred(target: Any, depth: int) -> Iterator[Any]:
    """The target and what its functions name, and what those name, ``depth`` levels deep."""
    seen: set[int] = set()
    level = [target]
    for _ in range(depth + 1):
        following: list[Any] = []
        for value in level:
            if id(value) in seen:
                continue
            seen.add(id(value))
            yield value
            if value is target or _is_shipped_by_value(value):
                for function in functions_in(value):
                    following.extend([function, *named_values(function).values()])
        level = following


def _is_shipped_by_value(value: Any) -> bool:
    """Functions and classes that a module holds are shipped by name: what they use comes with their module."""
    if not isinstance(value, FunctionType | type):
        return False
    return value.__module__ in (None, "__main__") or "<locals>" in value.__qualname__


def _global_names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _global_names(constant)
    return names


def _bytecode(target: Callable[..., Any] | type) -> bytes:
    functions = functions_in(target)
    if not functions:
        return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', repr(type(target)))}".encode()
    return b"".join(_code_bytes(function.__code__) for function in functions)


def _code_bytes(code: CodeType) -> bytes:
    constants = [
        _code_bytes(value) if isinstance(value, CodeType) else repr(value).encode() for value in code.co_consts
    ]
    return b"|".join([code.co_code, " ".join(code.co_names).encode(), *constants])


def _is_importable(name: str) -> bool:
    if name in sys.stdlib_module_names or name in ("__main__", "__mp_main__", "lightning_lab"):
        return False
    return getattr(sys.modules.get(name), "__spec__", None) is not None


_FOREIGN_FOLDERS = tuple(
    str(folder)
    for folder in {
        *(sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
        site.getusersitepackages(),
        *site.getsitepackages(),
        Path(lightning_lab.__file__).parent,
    }
)
