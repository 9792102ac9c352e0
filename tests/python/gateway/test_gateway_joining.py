"""A response's head and what follows it: one piece, and no head that waits for a body."""

from __future__ import annotations

import asyncio

from lightning_lab.gateway.joining import Joining

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Wire:
    """A transport that keeps what was sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed = False

    def get_extra_info(self, name: str) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def close(self) -> None:
        self.closed = True


async def test_head_and_body_are_one_piece() -> None:
    wire = Wire()
    joining = Joining(wire, asyncio.get_running_loop())  # type: ignore[arg-type]
    for piece in (HEAD, b"ok", b"more"):
        joining.write(piece)
    await asyncio.sleep(0)
    assert wire.sent == [HEAD + b"ok", b"more"]


async def test_a_head_alone_goes_out_at_the_next_turn() -> None:
    wire = Wire()
    joining = Joining(wire, asyncio.get_running_loop())  # type: ignore[arg-type]
    joining.write(HEAD)
    assert wire.sent == []
    await asyncio.sleep(0)
    assert wire.sent == [HEAD]
    joining.write(b"HTTP/1.1 is what this event is about")
    joining.write(b", and that")
    assert wire.sent[1:] == [b"HTTP/1.1 is what this event is about, and that"]


async def test_closing_sends_the_head_and_nothing_afterwards() -> None:
    wire = Wire()
    joining = Joining(wire, asyncio.get_running_loop())  # type: ignore[arg-type]
    joining.write(HEAD)
    joining.close()
    assert (wire.sent, wire.closed) == ([HEAD], True)
    joining.write(HEAD)
    await asyncio.sleep(0)
    assert wire.sent == [HEAD]


async def test_two_heads_in_a_row_stay_in_order() -> None:
    """The interim answer that lets a client send its body, and the answer."""
    wire = Wire()
    joining = Joining(wire, asyncio.get_running_loop())  # type: ignore[arg-type]
    joining.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    joining.write(HEAD)
    joining.write(b"ok")
    await asyncio.sleep(0)
    assert b"".join(wire.sent) == b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"ok"
