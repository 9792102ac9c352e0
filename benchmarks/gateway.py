"""What the gateway costs: requests per second beside a bare forwarder, on loopback. Prints one JSON object.

    python benchmarks/gateway.py --json
    python benchmarks/gateway.py --json --target http://127.0.0.1:9999/v1     # the same load on another proxy

Every part is a process of its own: a scripted upstream, the bare forwarder (Starlette, aiohttp, orjson; it only keeps
the ids), the gateway with everything on (attribution, keys, ledger, store on disk), and the load generator.

* `rps_2k`, `rps_30k`: 2,000 + 200 and 30,000 + 1,000 tokens a call, 32 clients; `forwarder_…`: the same, forwarder.
* `ratio_2k`, `ratio_30k`: ours over the forwarder's.
* `added_p99_ms`: p99 of ours minus the forwarder's, 2 K, 32 clients; `p99_2k_ms`: ours.
* `loop_lag_p99_ms`, `loop_lag_max_ms`: how late the gateway's event loop wakes up under the 2 K load.
* `mb_per_call_2k`: growth of the gateway's resident memory per stored call.
* `inflight_400_ratio`: ours over the forwarder's with 400 clients and an upstream that takes 0.5 s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
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
from lightning_lab.policy.base import Chunk, Rendered
from lightning_lab.records import Ids, Message, Sampling
from lightning_lab.store import Store

CHARACTERS = 4
"""Of one token, on average."""


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


# -- the upstream ------------------------------------------------------------------------------------------------------


async def upstream_ids(request: Request) -> Response:
    """Ids in, ids and log-probs out, as bytes: what a token-level engine does. ``?reply=…&delay=…``."""
    await request.body()
    count = await _wait(request)
    ids = np.arange(count, dtype=np.int32)
    return Response(ids.tobytes() + np.full(count, -0.5, np.float32).tobytes())


async def upstream_chat(request: Request) -> Response:
    """A chat completion that carries its ids and log-probs."""
    body = orjson.loads(await request.body())
    count = body["max_tokens"]
    await asyncio.sleep(body.get("delay", 0.0))
    message = {"role": "assistant", "content": "word" * count}
    answer = {"id": "x", "object": "chat.completion", "created": 0, "model": "m"}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "token_ids": list(range(count))}
    return Response(orjson.dumps(answer | {"choices": [choice | {"logprobs": [-0.5] * count}]}))


async def _wait(request: Request) -> int:
    delay = float(request.query_params.get("delay", 0))
    if delay:
        await asyncio.sleep(delay)
    return int(request.query_params["reply"])


def run_upstream(port: int) -> None:
    routes = [
        Route("/ids", upstream_ids, methods=["POST"]),
        Route("/v1/chat/completions", upstream_chat, methods=["POST"]),
    ]
    _serve(Starlette(routes=routes), port)


# -- the bare forwarder ------------------------------------------------------------------------------------------------


def run_forwarder(port: int, upstream: str) -> None:
    kept: list[bytes] = []
    session: list[aiohttp.ClientSession] = []

    async def forward(request: Request) -> Response:
        if not session:
            session.append(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        raw = await request.body()
        async with session[0].post(f"{upstream}/v1/chat/completions", data=raw) as answer:
            body = orjson.loads(await answer.read())
        for choice in body["choices"]:
            kept.append(np.asarray(choice.pop("token_ids"), np.int32).tobytes())
            del choice["logprobs"]
        return Response(orjson.dumps(body), media_type="application/json")

    _serve(Starlette(routes=[Route("/v1/chat/completions", forward, methods=["POST"])]), port)


# -- ours --------------------------------------------------------------------------------------------------------------


class UpstreamPolicy:
    """Renders by counting characters, generates at the upstream: the engine's own work costs next to nothing here."""

    name = "upstream"
    can_learn = False
    version = 0
    context_length = 1 << 20

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._session: aiohttp.ClientSession | None = None

    def start(self) -> None: ...

    def close(self) -> None: ...

    def fingerprint(self) -> Mapping[str, str]:
        return {}

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Rendered:
        text = "".join(message.content for message in messages).encode()
        return Rendered(ids=np.frombuffer(text, np.uint8)[::CHARACTERS].astype(np.int32))

    async def generate(self, prompt: Ids, sampling: Sampling, *, rollout_id: str) -> AsyncIterator[Chunk]:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        delay = sampling.stop[0] if sampling.stop else "0"  # the load says it so
        url = f"{self._upstream}/ids?reply={sampling.max_tokens}&delay={delay}"
        async with self._session.post(url, data=prompt.tobytes()) as answer:
            raw = await answer.read()
        half = len(raw) // 2
        ids = np.frombuffer(raw[:half], np.int32)
        yield Chunk(
            ids=ids,
            logprobs=np.frombuffer(raw[half:], np.float32),
            versions=np.zeros(len(ids), np.int32),
            finish_reason="stop",
        )

    def parse(self, ids: Ids) -> Message:
        return Message(role="assistant", content="word" * len(ids))

    def decode(self, ids: Ids) -> str:
        return "word" * len(ids)


def run_ours(pipe: Connection, upstream: str, rollouts: int) -> None:
    """Serves until told to stop; ``lag`` begins a measurement of the loop, ``read`` ends it."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "store.sqlite")
        gateway = Gateway(UpstreamPolicy(upstream), store)
        gateway.start()
        pipe.send([(access.url, access.key) for access in (gateway.open_rollout(f"r-{n}") for n in range(rollouts))])
        loop = gateway._loop
        assert loop is not None
        watch = LoopWatch()
        while (order := pipe.recv()) != "stop":
            if order == "lag":
                asyncio.run_coroutine_threadsafe(watch.run(), loop)
            else:
                watch.stop.set()
                store.flush()
                pipe.send({"lags": watch.lags, "rss_mb": resident_mb()})
                watch = LoopWatch()
        gateway.close()
        store.close()


class LoopWatch:
    """How late an event loop wakes up."""

    def __init__(self) -> None:
        self.lags: list[float] = []
        self.stop = threading.Event()

    async def run(self) -> None:
        while not self.stop.is_set():
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            self.lags.append(time.perf_counter() - before - 0.005)


def resident_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS")


# -- the load ----------------------------------------------------------------------------------------------------------


async def client(url: str, key: str, load: Load, number: int, until: float, times: list[float]) -> None:
    """One keep-alive connection that asks again and again; every request is another conversation."""
    host, _, path = url.removeprefix("http://").partition("/")
    name, _, port = host.partition(":")
    reader, writer = await asyncio.open_connection(name, int(port), limit=1 << 24)
    text, count = "lorem ipsum " * (load.prompt * CHARACTERS // 12), 0
    while time.perf_counter() < until:
        count += 1
        body = {"model": "m", "max_tokens": load.reply, "delay": load.delay_s}
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


def run_load(pipe: Connection, targets: list[tuple[str, str]], load: Load) -> None:
    async def all_clients() -> tuple[list[float], float]:
        times: list[float] = []
        started = time.perf_counter()
        until = started + load.seconds
        await asyncio.gather(*(client(*targets[n % len(targets)], load, n, until, times) for n in range(load.clients)))
        return times, time.perf_counter() - started

    times, seconds = asyncio.run(all_clients())
    pipe.send({"requests": len(times), "rps": len(times) / seconds, "p99_ms": 1000 * float(np.quantile(times, 0.99))})


def loaded(targets: list[tuple[str, str]], load: Load) -> dict[str, float]:
    """The load generator in a process of its own."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=run_load, args=(there, targets, load))
    process.start()
    try:
        if not here.poll(load.seconds + 60):
            raise RuntimeError("the load generator does not answer")
        return dict(here.recv())
    finally:
        process.join(5)


# -- together ----------------------------------------------------------------------------------------------------------


def measure(seconds: float, target: str | None) -> dict[str, float]:
    """All figures. With a target only its own and the forwarder's."""
    loads = {
        "2k": Load(2000, 200, 32, seconds),
        "30k": Load(30000, 1000, 32, seconds),
        "400": Load(2000, 200, 400, max(seconds, 4.0), delay_s=0.5),
    }
    upstream_port, forwarder_port = free_port(), free_port()
    upstream = f"http://127.0.0.1:{upstream_port}"
    spawn = multiprocessing.get_context("spawn")
    here, there = multiprocessing.Pipe()
    servers = [
        spawn.Process(target=run_upstream, args=(upstream_port,)),
        spawn.Process(target=run_forwarder, args=(forwarder_port, upstream)),
    ]
    if target is None:
        servers.append(spawn.Process(target=run_ours, args=(there, upstream, 64)))
    for server in servers:
        server.start()
    try:
        wait_for(upstream_port)
        wait_for(forwarder_port)
        forwarder = [(f"http://127.0.0.1:{forwarder_port}/v1", "none")]
        ours = [(f"{url}/v1", key) for url, key in here.recv()] if target is None else [(target, "none")]
        figures = _figures(loads, forwarder, ours, here if target is None else None)
        if target is None:
            here.send("stop")
            servers[-1].join(10)
        return figures
    finally:
        for server in servers:
            server.terminate()
            server.join(5)


def _figures(
    loads: Mapping[str, Load], forwarder: list[tuple[str, str]], ours: list[tuple[str, str]], pipe: Connection | None
) -> dict[str, float]:
    loaded(ours, Load(2000, 200, 32, 1.0))  # warm
    loaded(forwarder, Load(2000, 200, 32, 1.0))
    before = _read(pipe)
    if pipe is not None:
        pipe.send("lag")
    small = loaded(ours, loads["2k"])
    after = _read(pipe)
    bare = loaded(forwarder, loads["2k"])
    big, big_bare = loaded(ours, loads["30k"]), loaded(forwarder, loads["30k"])
    many, many_bare = loaded(ours, loads["400"]), loaded(forwarder, loads["400"])
    figures = {
        "rps_2k": small["rps"],
        "forwarder_rps_2k": bare["rps"],
        "ratio_2k": small["rps"] / bare["rps"],
        "rps_30k": big["rps"],
        "forwarder_rps_30k": big_bare["rps"],
        "ratio_30k": big["rps"] / big_bare["rps"],
        "p99_2k_ms": small["p99_ms"],
        "added_p99_ms": small["p99_ms"] - bare["p99_ms"],
        "inflight_400_ratio": many["rps"] / many_bare["rps"],
        "rps_400": many["rps"],
    }
    if before is not None and after is not None:
        lags = np.asarray(after["lags"]) * 1000
        figures["loop_lag_p99_ms"] = float(np.quantile(lags, 0.99))
        figures["loop_lag_max_ms"] = float(lags.max())
        figures["mb_per_call_2k"] = (after["rss_mb"] - before["rss_mb"]) / small["requests"]
    return {key: round(value, 4) for key, value in figures.items()}


def _read(pipe: Connection | None) -> dict[str, Any] | None:
    if pipe is None:
        return None
    pipe.send("read")
    return dict(pipe.recv())


def _serve(app: Callable[..., Any], port: int) -> None:
    uvicorn.run(app, port=port, log_level="error", access_log=False)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"nothing listens on port {port}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object on one line")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load")
    parser.add_argument("--target", help="base URL of another proxy (append /v1)")
    options = parser.parse_args()
    figures = measure(options.seconds, options.target)
    print(json.dumps(figures, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
