"""A line chart as a small PNG: the one picture that every notebook viewer shows."""

from __future__ import annotations

import base64
import io
import itertools
import math
from collections.abc import Sequence

from PIL import Image, ImageDraw

WIDTH, HEIGHT, PADDING = 360, 72, 6
_SCALE = 2  # drawn at twice the size, so that it is sharp on dense screens
_LINE, _GRID, _DOT = (25, 118, 210), (189, 189, 189), (230, 81, 0)


def sparkline_png(values: Sequence[float], *, low: float | None = None, high: float | None = None) -> bytes:
    """Draw ``values`` (non-finite ones leave a gap) between ``low`` and ``high``, by default their own range."""
    finite = [value for value in values if math.isfinite(value)]
    bottom = min(finite, default=0.0) if low is None else low
    top = max(finite, default=1.0) if high is None else high
    span = (top - bottom) or 1.0
    size = (WIDTH * _SCALE, HEIGHT * _SCALE)
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    for y in (PADDING, HEIGHT - PADDING):
        draw.line([(0, y * _SCALE), (size[0], y * _SCALE)], fill=_GRID, width=1)
    points = [_point(i, value, len(values), bottom, span) for i, value in enumerate(values)]
    for before, after in itertools.pairwise(points):
        if before and after:
            draw.line([before, after], fill=_LINE, width=2 * _SCALE, joint="curve")
    last = next((point for point in reversed(points) if point), None)
    if last:
        radius = 3 * _SCALE
        draw.ellipse([last[0] - radius, last[1] - radius, last[0] + radius, last[1] + radius], fill=_DOT)
    out = io.BytesIO()
    image.quantize(16).save(out, "PNG", optimize=True)
    return out.getvalue()


def sparkline_tag(values: Sequence[float], alt: str, **bounds: float) -> str:
    """The same as an ``<img>`` tag with its data inside. ``alt`` must be plain text without markup."""
    data = base64.b64encode(sparkline_png(values, **bounds)).decode("ascii")
    return f'<img alt="{alt}" width="{WIDTH}" height="{HEIGHT}" src="data:image/png;base64,{data}">'


def _point(i: int, value: float, count: int, bottom: float, span: float) -> tuple[float, float] | None:
    if not math.isfinite(value):
        return None
    x = PADDING + (WIDTH - 2 * PADDING) * (i / max(1, count - 1))
    share = min(1.0, max(0.0, (value - bottom) / span))
    return x * _SCALE, (HEIGHT - PADDING - (HEIGHT - 2 * PADDING) * share) * _SCALE
