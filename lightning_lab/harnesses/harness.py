"""The harness: an agent program, as a function of the notebook or a command, and the hash that versions it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, overload

from lightning_lab.harnesses.errors import HarnessError
from lightning_lab.harnesses.installing import located
from lightning_lab.harnesses.profiles import profile_named
from lightning_lab.harnesses.source import digest, source_of, version_of
from lightning_lab.records import HarnessInfo, Task

_FIELD = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_LONGEST_ARGUMENT = 128 * 1024
"""Bytes, the final NUL included (``MAX_ARG_STRLEN`` of Linux)."""
PROFILE_TIMEOUT_S = 1800.0
"""Seconds that a coding agent may take, unless told otherwise."""
POD_RESOURCES = {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}
"""What a pod may use, unless told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Harness:
    """An agent program. Make one with `harness` (a function or class) or `Harness.command` (any executable)."""

    name: str
    version: str
    kind: str
    """``function``, ``command``, ``kubernetes`` or ``external``."""
    source: str
    timeout_s: float = 300.0
    """Seconds that one run of the agent may take."""
    preload: tuple[str, ...] = ()
    """Modules that the fork server imports once, before the agents fork from it."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables added to the agent's scrubbed environment. ``{url}``, ``{key}`` and ``{home}`` are replaced."""
    home: Mapping[str, str] = field(default_factory=dict)
    """Files written into the agent's private home directory: path → text, with the same three replaced."""
    function: Callable[[Task], Any] | None = None
    argv: tuple[str, ...] = ()
    has_task_file: bool = True
    """Whether a command finds ``task.json`` in its working directory; a coding agent would take it for its work."""
    external: Mapping[str, Any] = field(default_factory=dict)
    """What an external controller is told, where that runs the agent: Agent Lightning's rollout ``config``."""
    job: Mapping[str, Any] = field(default_factory=dict)
    """What a Kubernetes Job is made of, where the agent is a pod: ``image`` and ``resources``, or ``template``."""

    @property
    def info(self) -> HarnessInfo:
        return HarnessInfo(name=self.name, version=self.version, kind=self.kind, source=self.source)

    def __call__(self, task: Task) -> Any:
        """Run the function here, in this process: for trying it out."""
        if self.function is None:
            raise HarnessError(f"{self.name} is a command: run it with lab.run(harness, task).")
        return self.function(task)

    @classmethod
    def command(
        cls,
        argv: Sequence[str],
        *,
        name: str | None = None,
        timeout_s: float = 300.0,
        env: Mapping[str, str] | None = None,
        home: Mapping[str, str] | None = None,
        preload: Sequence[str] = (),
    ) -> Harness:
        """Any executable, started in the rollout's private working directory.

        ``{prompt}``, ``{id}`` and ``{name}`` of the task's fields are replaced in ``argv``; the working directory
        holds ``task.json`` (without the answer). An argument that names a file which exists now is passed as an
        absolute path, and the file's content counts in the version. ``{url}`` (the rollout's base URL, without
        ``/v1``), ``{key}`` and ``{home}`` are replaced in the values of ``env`` and in ``home``, the files that the
        agent finds in its home directory. Raises `HarnessError`.
        """
        if isinstance(argv, str) or not argv:
            raise HarnessError('A command is a list of arguments, e.g. ["python", "agent.py", "{prompt}"].')
        if preload:
            raise HarnessError("A command loads its own modules: preload is for functions.")
        resolved = tuple(_absolute_if_file(str(part)) for part in argv)
        settings = {**_settings(timeout_s, (), env), **({"home": dict(home)} if home else {})}
        contents = [Path(part).read_bytes() for part in resolved if Path(part).is_absolute() and _is_script(part)]
        return cls(
            name=name or Path(argv[0]).name,
            version=digest(json.dumps([*argv]).encode(), json.dumps(settings, sort_keys=True).encode(), *contents),
            kind="command",
            source=json.dumps(list(argv)),
            timeout_s=_positive(timeout_s),
            env=dict(env or {}),
            home=_home_files(home or {}),
            argv=resolved,
        )

    @classmethod
    def profile(cls, name: str, *, timeout_s: float = PROFILE_TIMEOUT_S) -> Harness:
        """A released coding agent, unmodified, in the version that the lab supports.

        `lightning_lab.harnesses.PROFILES` has the names. The agent starts in the rollout's working directory, which
        holds the task's files, with the task's prompt; its configuration is written into the rollout's own home
        directory. Raises `HarnessError` for an unknown name, and for an agent that is not installed: the message
        says how to install it.
        """
        profile = profile_named(name)
        folder = located(profile)
        return cls(
            name=profile.name,
            version=f"{profile.version}+{profile.digest(timeout_s)}",
            kind="command",
            source=profile.source,
            timeout_s=_positive(timeout_s),
            env=profile.env_at(folder),
            home=_home_files(profile.home),
            argv=profile.argv_at(folder),
            has_task_file=False,
        )

    @classmethod
    def agent_lightning(
        cls,
        agent_class: str = "",
        *,
        env_map: Mapping[str, str] | None = None,
        job_template: str = "",
        timeout_s: float = 3600.0,
    ) -> Harness:
        """An agent written for Agent Lightning v1.0, run by its controller (``lab.serve_agl()``).

        ``agent_class`` (``module:Class``) and ``env_map`` (variable → path such as ``input.prompt``) are for its local
        controller, ``job_template`` (YAML) is for that of Kubernetes. ``input`` has the task's fields, ``prompt`` and
        ``answer``: such agents post their own rewards, so train them with the grader ``ll.tasks.posted``.
        """
        if not agent_class and not job_template:
            raise HarnessError('Which agent? Give agent_class="module:Class", or job_template=… for Kubernetes.')
        config: dict[str, Any] = {"timeout_seconds": int(_positive(timeout_s))}
        if agent_class:
            config["local"] = {"agent_class": agent_class, "env_map": dict(env_map or {})}
        if job_template:
            config["k8s"] = {"job_template": job_template}
        told = json.dumps(config, sort_keys=True)
        return cls(
            name=agent_class or "agent-lightning",
            version=digest(told.encode()),
            kind="external",
            source=told,
            timeout_s=_positive(timeout_s),
            external=config,
        )

    @classmethod
    def kubernetes(
        cls,
        image: str = "",
        command: Sequence[str] = (),
        *,
        resources: Mapping[str, str] | None = None,
        template: str = "",
        name: str | None = None,
        timeout_s: float = PROFILE_TIMEOUT_S,
        env: Mapping[str, str] | None = None,
    ) -> Harness:
        """An agent in a pod of a cluster (``lab.kubernetes(…)``): one Job for every attempt.

        Either ``image`` with ``command`` (none: the image's own) and ``resources``, which are request and limit alike
        (default: 1 CPU, 1 GiB of memory, 1 GiB of disk); or ``template``: a whole Job in YAML, filled in by Jinja with
        the task's fields, ``prompt``, ``id``, ``timeout_s`` and the filter ``tojson``. ``{prompt}``, ``{id}`` and
        ``{name}`` of the task's fields are replaced in ``command``; ``{url}``, ``{key}`` and ``{home}`` in ``env``.
        The output is what the agent wrote to ``/dev/termination-log``, else its log. Raises `HarnessError`.
        """
        if bool(image) == bool(template):
            raise HarnessError('Which pod? Give image="…" (with command and resources), or template="…": one of both.')
        if template and (command or resources):
            raise HarnessError("A template is complete: say command and resources there.")
        if isinstance(command, str):
            raise HarnessError('A command is a list of arguments, e.g. ["python", "/app/agent.py", "{prompt}"].')
        job = (
            {"template": template}
            if template
            else {"image": image, "resources": {**POD_RESOURCES, **(resources or {})}}
        )
        told = json.dumps({**job, "command": list(command), **_settings(timeout_s, (), env)}, sort_keys=True)
        return cls(
            name=name or (image.rpartition("/")[2] if image else "kubernetes"),
            version=digest(told.encode()),
            kind="kubernetes",
            source=told,
            timeout_s=_positive(timeout_s),
            env=dict(env or {}),
            argv=tuple(str(part) for part in command),
            job=job,
        )

    def environment(self, place: Mapping[str, str]) -> dict[str, str]:
        """``env`` for one rollout; ``place`` has its ``url``, ``key`` and ``home``."""
        return {name: _filled(value, place) for name, value in self.env.items()}

    def home_files(self, place: Mapping[str, str]) -> dict[str, str]:
        """``home`` for one rollout; ``place`` as in `environment`."""
        return {path: _filled(text, place) for path, text in self.home.items()}

    def arguments(self, task: Task) -> list[str]:
        """The command's argv for one task.

        Raises `HarnessError` for a whole argument that names no field, and for one that no program can be given.
        """
        values = {**task.fields, "prompt": task.prompt, "id": task.id}

        for part in self.argv:
            whole = _FIELD.fullmatch(part)
            if whole and whole[1] not in values:
                raise HarnessError(f"The command of {self.name} uses {part}; the task has {', '.join(sorted(values))}.")
        argv = [_filled(part, values) for part in self.argv]
        for part in argv:
            if "\0" in part or len(part.encode(errors="surrogatepass")) >= _LONGEST_ARGUMENT:
                raise HarnessError(
                    f"An argument of {self.name} for task {task.id} has a NUL byte, or {_LONGEST_ARGUMENT:,} bytes or "
                    "more, which Linux cannot pass. Give long texts as files of the task."
                )
        return argv


@overload
def harness(target: Callable[[Task], Any], /) -> Harness: ...
@overload
def harness(
    *,
    name: str | None = None,
    preload: Sequence[str] = (),
    timeout_s: float = 300.0,
    env: Mapping[str, str] | None = None,
) -> Callable[[Callable[[Task], Any]], Harness]: ...
def harness(
    target: Callable[[Task], Any] | None = None,
    /,
    *,
    name: str | None = None,
    preload: Sequence[str] = (),
    timeout_s: float = 300.0,
    env: Mapping[str, str] | None = None,
) -> Harness | Callable[[Callable[[Task], Any]], Harness]:
    """Make a harness of a sync or async function of one argument, the task; its return value is the output.

    A class becomes one too: each rollout makes an instance and calls it with the task. Defining it again in a cell
    gives a new version; rollouts in flight keep theirs. ``preload`` names modules to import once, in the fork server.

    Example::

        @ll.harness(preload=["agents"])
        async def solver(task):
            return (await Runner.run(bot, task.prompt)).final_output
    """

    def make(function: Callable[[Task], Any]) -> Harness:
        return _from_function(function, name, _module_names(preload), timeout_s, env)

    return make(target) if target is not None else make


@dataclass(frozen=True, slots=True)
class _PerRollout:
    """A harness class as a function: a fresh instance for every rollout."""

    made: Callable[[], Callable[[Task], Any]]

    def __call__(self, task: Task) -> Any:
        return self.made()(task)


def _from_function(
    target: Any, name: str | None, preload: tuple[str, ...], timeout_s: float, env: Mapping[str, str] | None
) -> Harness:
    if isinstance(target, Harness):
        raise HarnessError(f"{target.name} is a harness already.")
    if not callable(target):
        raise HarnessError("A harness is a function of one argument, the task.")
    return Harness(
        name=name or str(getattr(target, "__name__", type(target).__name__)),
        version=version_of(target, _settings(timeout_s, preload, env)),
        kind="function",
        source=source_of(target),
        timeout_s=_positive(timeout_s),
        preload=preload,
        env=dict(env or {}),
        function=_PerRollout(target) if isinstance(target, type) else target,
    )


def _filled(text: str, values: Mapping[str, Any]) -> str:
    """``text`` with each ``{name}`` that ``values`` know replaced, once."""
    return _FIELD.sub(lambda match: str(values.get(match[1], match[0])), text)


def _home_files(files: Mapping[str, str]) -> dict[str, str]:
    for path in files:
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts or not PurePosixPath(path).parts:
            raise HarnessError(f"home has {path!r}; paths are relative to the agent's home directory and stay in it.")
    return dict(files)


def _settings(timeout_s: float, preload: tuple[str, ...], env: Mapping[str, str] | None) -> dict[str, Any]:
    return {"timeout_s": timeout_s, "preload": list(preload), "env": dict(env or {})}


def _positive(timeout_s: float) -> float:
    if not timeout_s > 0:
        raise HarnessError(f"timeout_s is {timeout_s}; it must be above 0.")
    return float(timeout_s)


def _module_names(preload: Sequence[str]) -> tuple[str, ...]:
    if isinstance(preload, str):
        raise HarnessError(f'preload is a list of module names: preload=["{preload}"].')
    return tuple(preload)


def _absolute_if_file(part: str) -> str:
    return str(Path(part).resolve()) if "{" not in part and len(part) < 1024 and Path(part).is_file() else part


def _is_script(part: str) -> bool:
    return Path(part).is_file() and Path(part).stat().st_size < 1_000_000
