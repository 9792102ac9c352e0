"""The processes of `gateway.py`: a scripted upstream, the bare forwarder, the gateway, and the load generator.

The upstream answers as vLLM does when it is asked for ids and log-probs: ``prompt_token_ids``, ``token_ids`` and
``logprobs.content``; with ``"stream": true`` in events of `TOKENS_PER_EVENT` tokens. Its answers are prepared once, so
that it costs little itself. ``max_tokens`` says how much is sampled, and ``stop: ["0.5"]`` that it takes 0.5 s.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lightning_lab.gateway import Gateway
from lightning_lab.gateway.process import GatewayProcess
from lightning_lab.notebook.bridge import Bridge
from lightning_lab.notebook.feed import RunFeed
from lightning_lab.notebook.frames import Snapshot
from lightning_lab.policy.openai import OpenAIPolicy
from lightning_lab.records import HarnessInfo, Rollout, RolloutState, Run, Task
from lightning_lab.store import Store

CHARACTERS = 4
"""Of one token, on average."""
TOKENS_PER_EVENT = 100
KEEP_ALIVE_S = 600
ROLLOUTS = 64
SPAWN = multiprocessing.get_context("spawn")

Target = tuple[str, str]
"""Base URL (append ``/v1``) and key."""


# -- the upstream ------------------------------------------------------------------------------------------------------


class Upstream:
    """An ASGI application."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raw = await _body(receive)
        if scope["method"] == "GET":
            await _send(send, b'{"object":"list","data":[]}')
            return
        asked = orjson.loads(raw)
        if asked.get("stop"):
            await asyncio.sleep(float(asked["stop"][0]))
        prompt = sum(len(message["content"]) for message in asked["messages"]) // CHARACTERS // 10 * 10
        if not asked.get("stream"):
            await _send(send, whole(prompt, asked["max_tokens"]))
            return
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for event in events(prompt, asked["max_tokens"]):
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body"})


@lru_cache
def whole(prompt: int, reply: int) -> bytes:
    """A chat completion."""
    message = {"role": "assistant", "content": "word" * reply}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "stop_reason": None, **_told(0, reply)}
    head = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "prompt_token_ids": _ids(prompt)}
    return orjson.dumps({**head, "choices": [choice], "usage": _usage(prompt, reply)})


@lru_cache
def events(prompt: int, reply: int) -> list[bytes]:
    """The same as a stream."""
    opening = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    chunks: list[dict[str, Any]] = [{"prompt_token_ids": _ids(prompt), "choices": [opening]}]
    for start in range(0, reply, TOKENS_PER_EVENT):
        stop = min(start + TOKENS_PER_EVENT, reply)
        reason = "stop" if stop == reply else None
        choice = {"index": 0, "delta": {"content": "word" * (stop - start)}, "finish_reason": reason}
        chunks.append({"choices": [choice | _told(start, stop)]})
    chunks.append({"choices": [], "usage": _usage(prompt, reply)})
    head = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    return [*(b"data: " + orjson.dumps(head | chunk) + b"\n\n" for chunk in chunks), b"data: [DONE]\n\n"]


def _told(start: int, stop: int) -> dict[str, Any]:
    token = {"token": "word", "logprob": -0.51234567, "bytes": list(b"word"), "top_logprobs": []}
    return {"token_ids": list(range(start, stop)), "logprobs": {"content": [token] * (stop - start)}}


def _ids(count: int) -> list[int]:
    return [at % 150_000 for at in range(count)]


def _usage(prompt: int, reply: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": reply, "total_tokens": prompt + reply}


async def _body(receive: Any) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _send(send: Any, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def run_upstream(port: int) -> None:
    serve(Upstream(), port)


# -- the bare forwarder ------------------------------------------------------------------------------------------------


def forwarder(upstream: str) -> Starlette:
    """Starlette, aiohttp and orjson; it only keeps the ids, as int32 bytes."""
    kept: list[bytes] = []
    session: list[aiohttp.ClientSession] = []

    async def forward(request: Request) -> Response:
        if not session:
            session.append(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        raw = await request.body()
        async with session[0].post(f"{upstream}/v1/chat/completions", data=raw) as answer:
            body = orjson.loads(await answer.read())
        kept.append(np.asarray(body.pop("prompt_token_ids"), np.int32).tobytes())
        for choice in body["choices"]:
            kept.append(np.asarray(choice.pop("token_ids"), np.int32).tobytes())
            del choice["logprobs"]
        return Response(orjson.dumps(body), media_type="application/json")

    return Starlette(routes=[Route("/v1/chat/completions", forward, methods=["POST"])])


def run_forwarder(port: int, upstream: str, busy: bool) -> None:
    """``busy``: in a thread, beside a main thread that runs pure Python."""
    if not busy:
        serve(forwarder(upstream), port)
        return
    threading.Thread(target=serve, args=(forwarder(upstream), port), daemon=True).start()
    count_for_ever()


# -- ours --------------------------------------------------------------------------------------------------------------


def run_ours(pipe: Connection, upstream: str, mode: str, busy: bool) -> None:
    """The gateway in a kernel's place, with everything on: attribution, keys, ledger, store on disk, live feed.

    ``mode``: ``thread`` or ``process``. ``busy``: the main thread runs pure Python, as a cell may.
    """
    with tempfile.TemporaryDirectory() as folder:
        store, gateway = opened(Path(folder), upstream, mode)
        run = Run(id="run", kind="single", state="running", settings={}, created_at=time.time())
        store.put_run(run)
        rollouts = [rollout(f"r-{at}") for at in range(ROLLOUTS)]
        for one in rollouts:
            store.put_rollout(one)
        store.flush()
        bridge = Bridge(Shown(RunFeed(store, "run")), lambda frame: None)
        store.watch(bridge.wake)
        bridge.start()
        accesses = [gateway.open_rollout(one.id) for one in rollouts]
        pid = gateway._process.pid if isinstance(gateway, GatewayProcess) else os.getpid()
        threads = {thread.name: thread.native_id for thread in threading.enumerate()}
        pipe.send(([(access.url, access.key) for access in accesses], pid, threads))
        orders = threading.Thread(target=obey, args=(pipe, store, gateway), daemon=True)
        orders.start()
        if busy:
            count_while(orders.is_alive)
        orders.join()
        bridge.close()
        gateway.close()
        store.close()


def opened(folder: Path, upstream: str, mode: str) -> tuple[Store, Gateway | GatewayProcess]:
    path, build = folder / "store.sqlite", partial(OpenAIPolicy, f"{upstream}/v1", "m", api_key="")
    gateway: Gateway | GatewayProcess
    if mode == "process":
        gateway = GatewayProcess(build(), path, build=build)
        store = Store(path, writer=gateway.writer)
    else:
        store = Store(path)
        gateway = Gateway(build(), store)
    gateway.start()
    return store, gateway


def obey(pipe: Connection, store: Store, gateway: Gateway | GatewayProcess) -> None:
    """``watch`` begins a measurement of the gateway's loop, ``read`` ends it, ``stop`` ends all."""
    watch = LoopWatch()
    while (order := pipe.recv()) != "stop":
        if order == "watch":
            watch = LoopWatch()
            loop = getattr(gateway, "_loop", None)
            if loop is not None:
                asyncio.run_coroutine_threadsafe(watch.run(), loop)
        else:
            watch.stop.set()
            store.flush()
            pipe.send(watch.lags)


class LoopWatch:
    """How late an event loop wakes up, in seconds."""

    def __init__(self) -> None:
        self.lags: list[float] = []
        self.stop = threading.Event()

    async def run(self) -> None:
        while not self.stop.is_set():
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            self.lags.append(time.perf_counter() - before - 0.005)


def run_probe(pipe: Connection, url: str) -> None:
    """How long ``/health`` takes, every 5 ms, until told to stop: the lag of a loop, seen from outside."""
    name, _, port = url.removeprefix("http://").partition("/")[0].partition(":")
    lags: list[float] = []
    with socket.create_connection((name, int(port))) as connection:
        while not pipe.poll(0.005):
            before = time.perf_counter()
            connection.sendall(f"GET /health HTTP/1.1\r\nhost: {name}\r\n\r\n".encode())
            connection.recv(4096)
            lags.append(time.perf_counter() - before)
    pipe.send(lags)


@dataclass(frozen=True)
class Shown:
    """What the live feed shows."""

    run: RunFeed

    def feed(self) -> RunFeed:
        return self.run

    def snapshot(self, feed: RunFeed | None) -> Snapshot:
        return self.run.snapshot(lab="lab", lab_state="open")


def rollout(id_: str) -> Rollout:
    return Rollout(
        id=id_,
        run_id="run",
        group_id="g",
        task=Task(id="t", prompt="p"),
        harness=HarnessInfo(name="h", version="1", kind="function"),
        mode="single",
        state=RolloutState.RUNNING,
        created_at=time.time(),
    )


def count_for_ever() -> None:
    count_while(lambda: True)


def count_while(true: Callable[[], bool]) -> None:
    """Pure Python, as a busy cell."""
    count = 0
    while true():
        for _ in range(100_000):
            count += 1


# -- the load ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """One way to load a server."""

    prompt: int
    """Tokens."""
    reply: int
    clients: int
    seconds: float
    delay_s: float = 0.0
    """What the upstream takes."""
    once: bool = False
    """Each client asks once."""


@dataclass(frozen=True)
class Outcome:
    """What a load measured."""

    requests: int
    rps: float
    p99_ms: float
    cpu_ms: float
    """Processor time of the server's processes per request."""


async def client(target: Target, load: Load, number: int, until: float, times: list[float]) -> None:
    """One keep-alive connection that asks again and again; every request is another conversation."""
    url, key = target
    host, _, path = url.removeprefix("http://").partition("/")
    name, _, port = host.partition(":")
    reader, writer = await asyncio.open_connection(name, int(port), limit=1 << 24)
    text, count = "lorem ipsum " * (load.prompt * CHARACTERS // 12), 0
    while not count or (time.perf_counter() < until and not load.once):
        count += 1
        body: dict[str, Any] = {"model": "m", "max_tokens": load.reply}
        body["messages"] = [{"role": "user", "content": f"{number}-{count} {text}"}]
        if load.delay_s:
            body["stop"] = [str(load.delay_s)]
        raw = orjson.dumps(body)
        head = f"POST /{path}/chat/completions HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\n"
        started = time.perf_counter()
        writer.write(head.encode() + f"content-length: {len(raw)}\r\n\r\n".encode() + raw)
        answer = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in answer[:20]:
            raise RuntimeError(answer.decode())
        length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
        times.append(time.perf_counter() - started)
    writer.close()


def run_load(pipe: Connection, targets: list[Target], load: Load) -> None:
    async def all_clients() -> tuple[list[float], float]:
        times: list[float] = []
        started = time.perf_counter()
        until = started + load.seconds
        await asyncio.gather(*(client(targets[n % len(targets)], load, n, until, times) for n in range(load.clients)))
        return times, time.perf_counter() - started

    times, seconds = asyncio.run(all_clients())
    pipe.send((len(times), len(times) / seconds, 1000 * float(np.quantile(times, 0.99))))


def loaded(targets: list[Target], load: Load, server: int | None = None) -> Outcome:
    """The load generator in a process of its own. ``server``: the process whose processor time is counted."""
    here, there = multiprocessing.Pipe()
    process = SPAWN.Process(target=run_load, args=(there, targets, load))
    before = cpu_s(server)
    process.start()
    there.close()
    try:
        if not here.poll(load.seconds + 120):
            raise RuntimeError("the load generator does not answer")
        requests, rps, p99_ms = here.recv()
        return Outcome(requests, rps, p99_ms, 1000 * (cpu_s(server) - before) / requests)
    finally:
        process.join(5)


# -- processes ---------------------------------------------------------------------------------------------------------


@contextmanager
def started(target: Callable[..., None], *arguments: Any) -> Iterator[Any]:
    """A process of its own, ended afterwards."""
    process = SPAWN.Process(target=target, args=arguments)
    process.start()
    try:
        yield process
    finally:
        process.terminate()
        process.join(5)


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += family(int(child))
    return found


def cpu_s(pid: int | None) -> float:
    """Processor time of a process and all below it."""
    if pid is None:
        return 0.0
    return sum(used_s(f"/proc/{one}") for one in family(pid))


def used_s(place: str) -> float:
    """Processor time of one process or thread, by its folder in ``/proc``."""
    fields = Path(place, "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Memory of a process and all below it."""
    pages = sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in family(pid))
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def serve(app: Callable[..., Any], port: int) -> None:
    uvicorn.run(app, port=port, log_level="error", access_log=False, timeout_keep_alive=KEEP_ALIVE_S)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"nothing listens on port {port}")
