"""The controller's side of fork servers: start one per set of preloaded modules, ask it for processes, end it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightning_lab.controller import environment
from lightning_lab.controller.capture import Capture
from lightning_lab.controller.cgroups import Places
from lightning_lab.controller.frames import frame, json_frame, read_json
from lightning_lab.harnesses.source import own_files

_LOG = logging.getLogger(__name__)
_END_LIMIT_S = 8.0
_KEPT_SUPERVISORS = 64
"""Idle supervisors that a fork server keeps for the next rollouts."""
_ENDS_OF_AN_AGENT = ("exit", "timeout", "limit")
"""After the other reasons the supervisor ends too."""
_KEPT_PER_ROLE = 4
"""Idle fork servers that stay for the next rollout of an earlier harness."""


class BootError(RuntimeError):
    """A fork server did not come up. ``by_agent``: because a module that the harness preloads cannot be imported."""

    def __init__(self, message: str, *, by_agent: bool) -> None:
        super().__init__(message)
        self.by_agent = by_agent


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerKey:
    """What makes two harnesses share a fork server. Graders never share one with agents."""

    role: str
    """``agent`` or ``grader``."""
    preload: tuple[str, ...]
    optional: tuple[str, ...]
    """Modules worth preloading that nobody asked for: a failing import is left to the agent that needs it."""
    env: tuple[tuple[str, str], ...]
    path: tuple[str, ...]
    own_files: tuple[tuple[str, int], ...]
    """The files of the user's own modules with their times of change: an edited one is loaded anew."""

    @classmethod
    def make(cls, role: str, preload: tuple[str, ...], optional: tuple[str, ...], env: Mapping[str, str]) -> ServerKey:
        return cls(
            role=role,
            preload=preload,
            optional=tuple(name for name in optional if name not in preload),
            env=tuple(sorted(env.items())),
            path=tuple(environment.import_path()),
            own_files=own_files() if preload or optional else (),
        )


class Channel:
    """The controller's end of one supervisor's lifeline."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, generation: int) -> None:
        self._reader, self._writer = reader, writer
        self.generation = generation
        """What its fork server had learned to import when it forked this supervisor."""
        self.is_reusable = False
        """Whether the supervisor waits for more: it has reported, with its tree gone."""

    async def start(self, spec: Mapping[str, Any], payload: bytes) -> bool:
        """Have a process started; False, and closed, if the supervisor is gone."""
        self._writer.writelines([json_frame(spec), frame(payload)])
        event = None
        try:
            event = await self.event()
        finally:
            if event is None:
                self.close()
        return event is not None

    async def event(self) -> dict[str, Any] | None:
        """The next thing the supervisor says; None when it is gone."""
        event = await read_json(self._reader)
        self.is_reusable = (
            event is not None and event["event"] == "gone" and event["reason"] in ("exit", "timeout", "limit")
        )
        return event

    def cancel(self) -> None:
        """Have the agent's tree killed; the report still comes, the supervisor ends."""
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    def close(self) -> None:
        self._writer.close()


class ForkServer:
    """One fork server's process. Use it on the controller's loop only."""

    def __init__(self, key: ServerKey, home: Path, places: Places) -> None:
        self.live = 0
        """Processes launched and not yet over."""
        self.warning = ""
        """What the user should know about its start; emptied once it is told."""
        self._key, self._places = key, places
        self._printed = Capture()
        self._idle: list[Channel] = []
        self._learned: set[str] = set()
        self._generation = 0
        self._ended = asyncio.get_running_loop().create_future()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = _start(theirs, environment.for_server(home, dict(key.env)))
        self._control.setblocking(False)
        self._watch_output()

    @property
    def has_ended(self) -> bool:
        return self._ended.done()

    async def boot(self, limit_s: float) -> int:
        """Wait for the imports; returns how many threads there are. Raises `BootError`, with the process gone."""
        wishes = {
            "path": self._key.path,
            "preload": self._key.preload,
            "optional": self._key.optional,
            "places": self._places,
        }
        loop = asyncio.get_running_loop()
        try:
            self._control.send(json.dumps(wishes).encode())
            answer = json.loads(await asyncio.wait_for(loop.sock_recv(self._control, 1 << 20), limit_s) or b"{}")
        except (TimeoutError, OSError) as error:
            await self.end(at_once=True)
            raise BootError(self._boot_words(f"did not come up in {limit_s:g} s"), by_agent=False) from error
        if "threads" not in answer:
            await self.end(at_once=True)
            reason = answer.get("error") or self._boot_words("ended while it imported")
            raise BootError(f"Preloading {', '.join(self._key.preload)} failed:\n{reason}", by_agent=True)
        loop.add_reader(self._control, self._on_control)
        return int(answer["threads"])

    async def launch(self, spec: Mapping[str, Any], payload: bytes) -> Channel:
        """Have this process forked by a supervisor. Raises `OSError` if the fork server is gone."""
        while self._idle:
            if await (channel := self._idle.pop()).start(spec, payload):
                return channel
        if await (channel := await self._new_supervisor()).start(spec, payload):
            return channel
        raise ConnectionError(self._boot_words("forked a supervisor that vanished"))

    def give_back(self, channel: Channel) -> None:
        """Keep the supervisor for the next process if it can have one."""
        is_current = channel.generation == self._generation and not self.has_ended
        if channel.is_reusable and is_current and len(self._idle) < _KEPT_SUPERVISORS:
            self._idle.append(channel)
        else:
            channel.close()

    def learn(self, late_imports: Iterable[str]) -> None:
        """Have imported once, for the next agents, what an agent imported by itself."""
        new = [name for name in late_imports if name not in self._learned]
        if not new or self.has_ended:
            return
        with contextlib.suppress(OSError):  # busy or going: another agent will say it again
            self._control.send(json.dumps(new).encode())
            self._learned.update(new)
            self._generation += 1
            while self._idle:
                self._idle.pop().close()

    async def _new_supervisor(self) -> Channel:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs:
                await self._ask(theirs)
            return Channel(*await asyncio.open_unix_connection(sock=ours), self._generation)
        except BaseException:
            ours.close()
            raise

    async def end(self, *, at_once: bool = False) -> None:
        """End the process and everything it has forked. Idempotent."""
        if self._control.fileno() < 0:
            return
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        while self._idle:
            self._idle.pop().close()
        if at_once:
            self._process.kill()
        try:
            await asyncio.to_thread(self._process.wait, _END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        if not self._ended.done():
            self._ended.set_result(None)
        self._stop_watching_output()

    async def _ask(self, theirs: socket.socket) -> None:
        while True:
            try:
                socket.send_fds(self._control, [b"fork"], [theirs.fileno()])
            except BlockingIOError:  # it forks more slowly than it is asked
                await asyncio.sleep(0.005)
            else:
                return

    def _on_control(self) -> None:
        """A fork server says nothing after its start: readable means that it is gone."""
        asyncio.get_running_loop().remove_reader(self._control)
        if not self._ended.done():
            self._ended.set_result(None)
            _LOG.warning("%s", self._boot_words("ended unexpectedly"))

    def _watch_output(self) -> None:
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)
        asyncio.get_running_loop().add_reader(self._output, self._read_output)

    def _read_output(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._output, 1 << 16)
            self._printed.feed(data)
            if not data:
                asyncio.get_running_loop().remove_reader(self._output)

    def _stop_watching_output(self) -> None:
        asyncio.get_running_loop().remove_reader(self._output)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _boot_words(self, what: str) -> str:
        printed = self._printed.text().strip()
        return f"The fork server of the {self._key.role}s {what}." + (f" It printed:\n{printed}" if printed else "")


class ServerPool:
    """Fork servers by key. Use it on the controller's loop only."""

    def __init__(self, root: Path, boot_limit_s: float, places: Places) -> None:
        self._root, self._boot_limit_s, self._places = root, boot_limit_s, places
        self._servers: dict[ServerKey, asyncio.Task[ForkServer]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def start(self, key: ServerKey) -> asyncio.Task[ForkServer]:
        """The fork server of this key, starting if need be: all who need it share one start."""
        task = self._servers.get(key)
        if task is None or _is_useless(task):
            self._retire_idle(key.role)
            task = self._servers[key] = asyncio.create_task(self._boot(key))
            task.add_done_callback(_take_notice)
        self._servers[key] = self._servers.pop(key)  # the most recently used comes last
        return task

    async def get(self, key: ServerKey) -> ForkServer:
        """`start`, and wait for it; who stops waiting does not stop the start. Raises `BootError`."""
        return await asyncio.shield(self.start(key))

    async def end_all(self) -> None:
        servers, self._servers = list(self._servers.values()), {}
        await asyncio.gather(*(_end(task) for task in servers), *self._ending)

    async def _boot(self, key: ServerKey) -> ForkServer:
        """A fork server with one thread: modules that start more are preloaded only for those who insist."""
        server, threads = await self._started(key)
        if threads > 1 and key.optional:
            await server.end()
            server, threads = await self._started(replace(key, optional=()))
        if threads > 1:
            server.warning = (
                f"Preloading {', '.join(key.preload)} started {threads - 1} threads; agents are forked without them "
                "and may hang. Preload only modules that start none."
            )
        return server

    async def _started(self, key: ServerKey) -> tuple[ForkServer, int]:
        home = self._root / f"server-{key.role}"
        home.mkdir(exist_ok=True)
        server = ForkServer(key, home, self._places)
        try:
            return server, await server.boot(self._boot_limit_s)
        except asyncio.CancelledError:
            await server.end(at_once=True)
            raise

    def _retire_idle(self, role: str) -> None:
        """Before one more is started: end the longest unused ones, and drop those that are gone."""
        mine = [key for key in self._servers if key.role == role]
        surplus = len(mine) - _KEPT_PER_ROLE + 1
        for key in mine:
            task = self._servers[key]
            idle = task.done() and (_is_useless(task) or task.result().live == 0)
            if idle and (surplus > 0 or _is_useless(task)):
                del self._servers[key]
                surplus -= 1
                ending = asyncio.create_task(_end(task))
                self._ending.add(ending)
                ending.add_done_callback(self._ending.discard)


def _is_useless(task: asyncio.Task[ForkServer]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None or task.result().has_ended)


def _take_notice(task: asyncio.Task[ForkServer]) -> None:
    """Who waits gets the error; without this, asyncio would print it where nobody waits any more."""
    if not task.cancelled():
        task.exception()


async def _end(task: asyncio.Task[ForkServer]) -> None:
    if not task.done():
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await (await task).end()


def _start(control: socket.socket, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "lightning_lab.controller.fork_server"]
    return subprocess.Popen(
        [*command, "--control", str(control.fileno()), "--parent", str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(env),
        pass_fds=(control.fileno(),),
        start_new_session=True,
    )
