"""A cluster whose node is this machine: each pod's command really runs, as a process, as a kubelet would have it run.

What a container gets by mounting lies in a folder instead; its network is a rule that leads one address to loopback.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from pathlib import Path

from aiohttp import web
from controller_cluster import ApiServer, Object, ended, running, waiting

GATEWAY_ADDRESS = "10.0.0.5"


class Cluster(ApiServer):
    """``images``: those that can be pulled."""

    def __init__(self, images: tuple[str, ...] = ("agent:1",)) -> None:
        self.images = images
        self.printed: dict[str, str] = {}
        self.ran: list[str] = []
        self._pods: dict[str, asyncio.Task[None]] = {}
        super().__init__()

    def _start_pod(self, job: Object) -> None:
        template, name = job["spec"]["template"], job["metadata"]["name"]
        pod = {"metadata": {"name": name, "labels": template["metadata"]["labels"]}, "spec": template["spec"]}
        self._put("pods", name, pod, "ADDED")
        self._pods[name] = self._loop.create_task(self._run(name, pod["spec"], job["spec"]["activeDeadlineSeconds"]))

    async def _run(self, name: str, spec: Object, deadline_s: float) -> None:
        (container,) = spec["containers"]
        if container["image"] not in self.images:
            self._set_status("pods", name, waiting("ErrImagePull", f"{container['image']} not found"))
            return
        while name not in self.objects["secrets"]:  # a container waits for what it mounts
            self._set_status("pods", name, waiting("ContainerCreating"))
            await asyncio.sleep(0.02)
        folder = Path(tempfile.mkdtemp(prefix="pod-"))
        process = await self._started(folder, container, self.objects["secrets"][name]["stringData"])
        self.ran.append(name)
        self._set_status("pods", name, running())
        try:
            async with asyncio.timeout(deadline_s):
                printed, _ = await process.communicate()
            self.printed[name] = printed.decode()
            code = process.returncode or 0
            self._set_status("pods", name, ended(code if code >= 0 else 128 - code, "Error" if code else "Completed"))
        except TimeoutError:
            self._set_status("pods", name, {"phase": "Failed", "reason": "DeadlineExceeded"})
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
            shutil.rmtree(folder)

    @staticmethod
    async def _started(folder: Path, container: Object, secret: dict[str, str]) -> asyncio.subprocess.Process:
        (folder / "task.json").write_text(secret["task.json"])
        env = {"PATH": os.environ["PATH"]}
        for each in container["env"]:
            source = each.get("valueFrom")
            env[each["name"]] = secret[source["secretKeyRef"]["key"]] if source else each["value"]
        env = {name: value.replace(f"//{GATEWAY_ADDRESS}:", "//127.0.0.1:") for name, value in env.items()}
        return await asyncio.create_subprocess_exec(
            *(part.replace("$$", "$") for part in container["command"]),
            cwd=folder,
            env={**env, "HOME": str(folder)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )

    async def _log(self, request: web.Request) -> web.Response:
        return web.Response(text=self.printed.get(request.match_info["name"], ""))

    def _delete(self, kind: str, name: str) -> None:
        super()._delete(kind, name)
        if kind == "pods" and name in self._pods:
            self._pods.pop(name).cancel()

    def close(self) -> None:
        async def end_pods() -> None:
            for task in self._pods.values():
                task.cancel()
            await asyncio.gather(*self._pods.values(), return_exceptions=True)

        self._call(end_pods())
        super().close()
