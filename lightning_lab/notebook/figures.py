"""Plotly figures of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightning_lab.records import Step

if TYPE_CHECKING:
    import plotly.graph_objects as go


def learning_figure(steps: Sequence[Step], held_out: Sequence[Mapping[str, Any]], title: str) -> go.Figure:
    """Reward per step (train, and held-out where it was evaluated) above, entropy in nats per token below."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    figure = make_subplots(
        rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08, row_heights=[0.62, 0.38],
    )  # fmt: skip
    index = [step.index for step in steps]
    train = go.Scatter(x=index, y=_metric(steps, "reward"), name="train", mode="lines", line={"width": 2})
    figure.add_trace(train, row=1, col=1)
    if held_out:
        x, y = [point["step"] for point in held_out], [point["value"] for point in held_out]
        figure.add_trace(go.Scatter(x=x, y=y, name="held-out", mode="lines+markers", line={"width": 2}), row=1, col=1)
    entropy = go.Scatter(x=index, y=_metric(steps, "entropy"), name="entropy", mode="lines", line={"width": 2})
    figure.add_trace(entropy, row=2, col=1)
    figure.update_yaxes(title_text="reward", row=1, col=1)
    figure.update_yaxes(title_text="entropy (nats)", row=2, col=1)
    figure.update_xaxes(title_text="step", row=2, col=1)
    figure.update_layout(title=title, height=420, margin={"l": 60, "r": 20, "t": 50, "b": 40}, hovermode="x unified")
    return figure


def _metric(steps: Sequence[Step], name: str) -> list[float | None]:
    return [step.metrics.get(name) for step in steps]
