"""The Jupyter server's part of the panel: reads exported runs (``.llab``), so that they open without a kernel.

Reading SQLite in the browser would cost as much script as the whole panel and a second reader of the format. The
server has this package anyway, because the extension came with it. It only reads, only below the server's root, and
only for those who may read that file.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import ApiPath, to_os_path, url_path_join
from tornado import web

if TYPE_CHECKING:
    from lightning_lab.notebook.run_file import RunFile

Packed = Callable[[Any, Sequence[bytes]], bytes]

AUTH_RESOURCE = "contents"
_KEPT = 4
SUFFIX = ".llab"


class OpenFiles:
    """The files that were read last, by path and time of change. Used from worker threads."""

    def __init__(self) -> None:
        self._files: OrderedDict[tuple[str, int], RunFile] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: Path) -> RunFile:
        """Raises `store.StoreError` or `OSError`."""
        from lightning_lab.notebook.run_file import RunFile  # not before the first file: the server starts without

        key = (str(path), path.stat().st_mtime_ns)
        with self._lock:
            file = self._files.get(key) or RunFile(path)
            self._files[key] = file
            self._files.move_to_end(key)
            while len(self._files) > _KEPT:
                self._files.popitem(last=False)[1].close()
            return file


class RunFileHandler(APIHandler):
    """``GET``: the frames of a run. ``POST``: one request of the panel. Both with ``?path=`` below the root."""

    auth_resource = AUTH_RESOURCE

    def initialize(self, files: OpenFiles) -> None:
        self._files = files

    @web.authenticated
    @authorized
    async def get(self) -> None:
        await self._answer(
            lambda file, packed: b"".join(packed(frame.header, frame.buffers) for frame in file.frames())
        )

    @web.authenticated
    @authorized(action="read")  # type: ignore[untyped-decorator]
    async def post(self) -> None:
        try:
            data = orjson.loads(self.request.body)
        except orjson.JSONDecodeError:
            raise web.HTTPError(400, "The request is no JSON.") from None

        def reply(file: RunFile, packed: Packed) -> bytes:
            answer = file.answer(data)
            return packed(answer.data, answer.buffers)

        await self._answer(reply)

    async def _answer(self, make: Callable[[RunFile, Packed], bytes]) -> None:
        path = await self._path()

        from lightning_lab.notebook.run_file import packed
        from lightning_lab.store import StoreError

        def work() -> bytes:
            return make(self._files.get(path), packed)

        try:
            body = await asyncio.to_thread(work)
        except (StoreError, OSError) as error:
            # Where the server keeps its files is nobody's business in the browser.
            said = str(error).replace(str(path), path.name)
            raise web.HTTPError(422, said if path.name in said else f"{path.name} cannot be read: {said}") from None
        self.set_header("Content-Type", "application/octet-stream")
        self.finish(body)

    async def _path(self) -> Path:
        asked = self.get_query_argument("path", "")
        manager: Any = self.contents_manager
        root = getattr(manager, "root_dir", None)
        if not root:
            raise web.HTTPError(501, "This server keeps its files elsewhere than on its disk: download the file first.")
        if not asked.endswith(SUFFIX) or not await ensure_async(manager.file_exists(asked)):
            raise web.HTTPError(404, f"There is no exported run at {asked!r}.")
        if await ensure_async(manager.is_hidden(asked)) and not manager.allow_hidden:
            raise web.HTTPError(404, f"There is no exported run at {asked!r}.")
        return Path(to_os_path(ApiPath(asked.strip("/")), root))


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "lightning_lab.server_extension"}]


def _load_jupyter_server_extension(server: Any) -> None:
    route = url_path_join(server.web_app.settings["base_url"], "lightning-lab", "run")
    server.web_app.add_handlers(".*$", [(route, RunFileHandler, {"files": OpenFiles()})])
