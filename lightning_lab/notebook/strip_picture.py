"""A rollout's samples as a small PNG: a line for each, coloured by what its tokens are."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from lightning_lab.notebook.strips import OBSERVATION, PROMPT, SAMPLED, token_roles
from lightning_lab.records import Sample

WIDTH, LINE, GAP = 640, 14, 4
_MOST = 12
"""Samples that are drawn; the others are said to be there."""
_COLORS = {PROMPT: (189, 189, 189), OBSERVATION: (100, 170, 225), SAMPLED: (67, 160, 71)}
_MASKED = (245, 124, 0)


def strip_png(samples: Sequence[Sample]) -> bytes:
    """The longest sample takes the whole width; a column shows one of its tokens, a sampled one if there is any."""
    shown = samples[:_MOST]
    longest = max(len(sample.ids) for sample in shown)
    picture = np.full((len(shown) * (LINE + GAP) - GAP, WIDTH, 3), 255, np.uint8)
    for place in range(len(shown)):
        roles = token_roles(samples, place)
        width = max(1, round(WIDTH * len(roles) / longest))
        starts = np.arange(width) * len(roles) // width
        most = np.maximum.reduceat(roles, starts) if len(roles) else np.zeros(width, np.uint8)
        colors = np.array([_COLORS.get(int(role), _MASKED) for role in most], np.uint8)
        picture[place * (LINE + GAP) : place * (LINE + GAP) + LINE, :width] = colors
    out = io.BytesIO()
    Image.fromarray(picture).quantize(8).save(out, "PNG", optimize=True)
    return out.getvalue()


def strip_tag(samples: Sequence[Sample]) -> str:
    """The same as an ``<img>`` tag with its data inside, and what its colours mean; empty without samples."""
    if not any(len(sample.ids) for sample in samples[:_MOST]):
        return ""
    data = base64.b64encode(strip_png(samples)).decode("ascii")
    more = f"; {len(samples) - _MOST} more are not drawn" if len(samples) > _MOST else ""
    height = min(len(samples), _MOST) * (LINE + GAP) - GAP
    key = f"samples: read grey, read between replies blue, trained green, sampled and masked orange{more}"
    tag = f'<img alt="samples by role" width="{WIDTH}" height="{height}" src="data:image/png;base64,{data}">'
    return f"<p>{key}<br>{tag}</p>"
