"""What a run needs of each GPU, before it starts: pure arithmetic on a model's sizes.

Three moments are looked at, and the worst decides:

* ``sampling``: the engine's weights, keys and values, and states of sequences; where learner and engine share GPUs also
  what the learner leaves there;
* ``learning``: master weights, gradients and moments, each split over the ``shards``; gathered layers; activations and
  logits of one micro-batch; where they share GPUs, what the engine leaves;
* ``publishing``: weights of both sides at once.

Formulas: master weights and the two moments of AdamW in float32 take 12 bytes a parameter, gradients in float32 4 more
(Rajbhandari et al., 2020, "ZeRO"); activations by `ModelShape.activations`; with checkpointing only each layer's input
is kept, and one layer's activations at a time are made again. ``reserved_gib`` stands for what cannot be computed: the
device's context, communication buffers, fragmentation.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lightning_lab.planning.shape import ModelShape

GIB = 1 << 30
DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1}
MOMENTS = ("sampling", "learning", "publishing")
_ADAM_BYTES = 2 * 4
"""Bytes a trained parameter: AdamW's two moments, in float32."""
_STATE_BYTES = 4
"""Recurrent states are kept in float32 (``mamba_ssm_dtype`` in Qwen3.5's config)."""


class DoesNotFitError(ValueError):
    """A plan needs more memory than a GPU has; the message says by how much, and what would fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLayout:
    """How the model is served."""

    tensor_parallel: int = 1
    dtype: str = "bfloat16"
    sequences: int = 64
    """Calls that one replica generates at a time."""
    sequence_tokens: int = 8192
    """Tokens that such a call holds, prompt and reply, on average."""
    kv_dtype: str = "bfloat16"
    workspace_gib: float = 2.0
    """Activations and captured graphs of the engine: an assumption, not computed."""
    shares_weights: bool = False
    """The engine samples from the learner's own tensors, as the embedded torch policy does."""
    sleeps: bool = True
    """While the learner works the engine gives its memory back; only where they share GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a run lies on its GPUs."""

    gpus: int
    """Of the learner; with ``collocated`` the engine has the same ones. One where there is no GPU."""
    gpu_gib: float
    """Of one of them, or the machine's."""
    on_cpus: bool = False
    """Everything is in one machine's memory: nothing is split, and nobody can give anything back."""
    micro_batch_tokens: int
    """Tokens of one micro-batch on one group of ``sequence_parallel`` GPUs."""
    engine: EngineLayout = EngineLayout()
    collocated: bool = True
    shards: int | None = None
    """GPUs over which weights, gradients and moments are split; None: all."""
    sequence_parallel: int = 1
    weights: str = "float32"
    """Of the master weights and gradients."""
    compute: str = "bfloat16"
    """Of the gathered weights and of activations."""
    checkpointing: bool = True
    """Keep each layer's input only, and compute the rest again in the backward pass."""
    logit_tokens: int | None = None
    """Tokens whose logits are held at one time; None: the micro-batch's."""
    offload: bool = False
    """Master weights and moments wait in the host's memory while they are not used."""
    lora_rank: int = 0
    """0: every parameter trains."""
    reference: bool = False
    """A frozen copy of the weights, for a KL term."""
    reserved_gib: float = 3.0

    @property
    def where(self) -> str:
        return "of the machine" if self.on_cpus else "on each GPU"

    @property
    def who(self) -> str:
        return "it" if self.on_cpus else "a GPU"


@dataclass(frozen=True, slots=True)
class Line:
    """One use of memory, in bytes on one GPU."""

    moment: str
    name: str
    bytes: float


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What each GPU holds at each moment. Displays as a table."""

    shape: ModelShape
    layout: Layout
    lines: Sequence[Line]

    def total(self, moment: str) -> float:
        """GiB on one GPU at one of `MOMENTS`, reserve included."""
        return sum(line.bytes for line in self.lines if line.moment == moment) / GIB + self.layout.reserved_gib

    @property
    def worst(self) -> str:
        """The moment that needs most."""
        return max(MOMENTS, key=self.total)

    @property
    def peak_gib(self) -> float:
        return self.total(self.worst)

    @property
    def fits(self) -> bool:
        return self.peak_gib <= self.layout.gpu_gib

    def check(self) -> None:
        """Raises `DoesNotFitError`, with the changes that would make it fit."""
        if self.fits:
            return
        largest = max((line for line in self.lines if line.moment == self.worst), key=lambda line: line.bytes)
        changes = changes_that_fit(self.shape, self.layout)
        larger = "a larger machine" if self.layout.on_cpus else "more or larger GPUs"
        what_to_do = f"No single change makes it fit: use {larger}, or a smaller model."
        if changes:
            what_to_do = f"One of these alone makes it fit: {'; '.join(changes)}."
        raise DoesNotFitError(
            f"This run needs {self.peak_gib:.1f} GiB {self.layout.where} while {self.worst}, and "
            f"{self.layout.who} has {self.layout.gpu_gib:g} GiB. The most is for {largest.name}: "
            f"{largest.bytes / GIB:.1f} GiB. {what_to_do}"
        )

    def __str__(self) -> str:
        rows = self._rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join([self._headline(), *(f"  {name:<{width}}  {gib:>8.2f} GiB" for name, gib in rows)])

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{html.escape(name)}</td><td>{gib:.2f}</td></tr>" for name, gib in self._rows())
        head = f"<tr><th>{self.layout.where}</th><th>GiB</th></tr>"
        return f"<p>{html.escape(self._headline())}</p><table>{head}{rows}</table>"

    def _headline(self) -> str:
        verdict = "fits" if self.fits else "DOES NOT FIT"
        layout = self.layout
        has = f"CPUs with {layout.gpu_gib:g} GiB" if layout.on_cpus else f"{layout.gpus} × {layout.gpu_gib:g} GiB"
        return (
            f"{self.shape.parameters / 1e9:.2f} B parameters on {has}: {verdict}, "
            f"{self.peak_gib:.1f} GiB while {self.worst}"
        )

    def _rows(self) -> list[tuple[str, float]]:
        rows: list[tuple[str, float]] = []
        for moment in MOMENTS:
            lines = [line for line in self.lines if line.moment == moment]
            if lines:
                rows += [(f"{moment}: {line.name}", line.bytes / GIB) for line in lines]
                rows += [(f"{moment}: reserve", self.layout.reserved_gib), (f"{moment}: all", self.total(moment))]
        return rows


def plan_memory(shape: ModelShape, layout: Layout) -> MemoryPlan:
    """Raises `ValueError` for a layout that contradicts itself; `MemoryPlan.check` refuses one that does not fit."""
    _check(layout)
    uses = zip(MOMENTS, (_sampling, _learning, _publishing), strict=True)
    lines = [Line(moment, name, size) for moment, use in uses for name, size in use(shape, layout)]
    return MemoryPlan(shape, layout, [line for line in lines if line.bytes])


def changes_that_fit(shape: ModelShape, layout: Layout) -> list[str]:
    """Single changes after which the plan fits, each tried, the mildest of its kind."""
    engine = layout.engine
    tried: list[tuple[str, object, Layout]] = [("checkpointing", True, replace(layout, checkpointing=True))]
    if not layout.on_cpus:
        tried.append(("offload", True, replace(layout, offload=True)))
    for part in (2, 4, 8):
        tokens, sequences = max(1, layout.micro_batch_tokens // part), max(1, engine.sequences // part)
        tried += [
            ("micro_batch_tokens", tokens, replace(layout, micro_batch_tokens=tokens)),
            ("logit_tokens", tokens, replace(layout, logit_tokens=tokens)),
            ("sequences", sequences, replace(layout, engine=replace(engine, sequences=sequences))),
        ]
        if not layout.on_cpus:
            tried.append(("gpus", layout.gpus * part, replace(layout, gpus=layout.gpus * part, shards=None)))
        if engine.tensor_parallel < part and layout.gpus % part == 0:
            tried.append(("tensor_parallel", part, replace(layout, engine=replace(engine, tensor_parallel=part))))
    tried.append(("lora_rank", 32, replace(layout, lora_rank=32)))
    found: dict[str, object] = {}
    for name, value, other in tried:
        if name not in found and other != layout and plan_memory(shape, other).fits:
            found[name] = value
    return [f"{name}: {str(value).lower()}" for name, value in found.items()]


def _sampling(shape: ModelShape, layout: Layout) -> list[tuple[str, float]]:
    engine = layout.engine
    return [
        ("engine's weights", _engine_weights(shape, engine)),
        ("keys and values", _kv_bytes(shape, engine)),
        ("states of sequences", _state_bytes(shape, engine)),
        ("engine's workspace", engine.workspace_gib * GIB),
        ("learner's weights and moments", _resident(shape, layout) if layout.collocated else 0.0),
    ]


def _learning(shape: ModelShape, layout: Layout) -> list[tuple[str, float]]:
    engine, size = layout.engine, DTYPE_BYTES[layout.compute]
    tokens = layout.micro_batch_tokens / layout.sequence_parallel
    kept, largest = shape.activations()
    activations = (shape.layers * shape.hidden + largest) if layout.checkpointing else kept
    stays = layout.collocated and not engine.sleeps
    return [
        ("weights", _weights(shape, layout)),
        ("gradients", _trained(shape, layout) * DTYPE_BYTES[layout.weights] / _shards(layout)),
        ("moments", _moments(shape, layout)),
        ("gathered layers", _gathered(shape, layout) * size),
        ("activations", tokens * activations * size),
        # As they are computed, in float32, and their gradient.
        ("logits", min(layout.logit_tokens or tokens, tokens) * shape.vocabulary * (size + 2 * 4)),
        ("reference's weights", shape.parameters * size / _shards(layout) if layout.reference else 0.0),
        ("engine's weights", _engine_weights(shape, engine) if stays else 0.0),
        ("keys and values", _kv_bytes(shape, engine) + _state_bytes(shape, engine) if stays else 0.0),
    ]


def _publishing(shape: ModelShape, layout: Layout) -> list[tuple[str, float]]:
    engine = layout.engine
    if not layout.collocated or engine.shares_weights:
        return []
    return [
        ("learner's weights", _weights(shape, layout)),
        ("moments", 0.0 if layout.offload else _moments(shape, layout)),
        ("engine's weights", _engine_weights(shape, engine)),
        ("gathered layer", max(shape.largest_layer, shape.outside_layers) * DTYPE_BYTES[layout.compute]),
    ]


def _shards(layout: Layout) -> int:
    return layout.shards or layout.gpus


def _trained(shape: ModelShape, layout: Layout) -> int:
    return shape.adapters(layout.lora_rank) if layout.lora_rank else shape.parameters


def _weights(shape: ModelShape, layout: Layout) -> float:
    """The learner's part of the weights: masters of what trains, and with LoRA the frozen ones as they compute."""
    frozen = shape.parameters * DTYPE_BYTES[layout.compute] if layout.lora_rank else 0
    return (_trained(shape, layout) * DTYPE_BYTES[layout.weights] + frozen) / _shards(layout)


def _moments(shape: ModelShape, layout: Layout) -> float:
    return _trained(shape, layout) * _ADAM_BYTES / _shards(layout)


def _gathered(shape: ModelShape, layout: Layout) -> int:
    """Numbers that are whole on a GPU: FSDP2 holds a layer, the next one, and what is outside of layers; and gradients
    of a layer before they are split."""
    if _shards(layout) == 1 and layout.weights == layout.compute:
        return 0
    return (2 if layout.lora_rank else 3) * shape.largest_layer + shape.outside_layers


def _resident(shape: ModelShape, layout: Layout) -> float:
    """What the learner keeps on a GPU while it does not learn."""
    return 0.0 if layout.offload else _weights(shape, layout) + _moments(shape, layout)


def _engine_weights(shape: ModelShape, engine: EngineLayout) -> float:
    if engine.shares_weights:
        return 0.0
    return shape.parameters * DTYPE_BYTES[engine.dtype] / engine.tensor_parallel


def _kv_bytes(shape: ModelShape, engine: EngineLayout) -> float:
    """Key-value heads are split over the tensor-parallel ranks, down to one on each."""
    split = min(engine.tensor_parallel, shape.kv_heads)
    return shape.kv_per_token * DTYPE_BYTES[engine.kv_dtype] * engine.sequences * engine.sequence_tokens / split


def _state_bytes(shape: ModelShape, engine: EngineLayout) -> float:
    linear = shape.linear
    if linear is None:
        return 0.0
    convolution = linear.convolved * (linear.kernel - 1) * DTYPE_BYTES[engine.dtype]
    return linear.layers * (linear.state * _STATE_BYTES + convolution) * engine.sequences / engine.tensor_parallel


def _check(layout: Layout) -> None:
    engine = layout.engine
    for dtype in (layout.weights, layout.compute, engine.dtype, engine.kv_dtype):
        if dtype not in DTYPE_BYTES:
            raise ValueError(f"There is no dtype {dtype!r}. Use one of: {', '.join(DTYPE_BYTES)}.")
    counts = {
        "gpus": layout.gpus,
        "micro_batch_tokens": layout.micro_batch_tokens,
        "sequence_parallel": layout.sequence_parallel,
        "tensor_parallel": engine.tensor_parallel,
        "sequences": engine.sequences,
        "sequence_tokens": engine.sequence_tokens,
    }
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} is {count}; it must be at least 1.")
    parts = {"shards": _shards(layout), "sequence_parallel": layout.sequence_parallel}
    if layout.collocated:
        parts["tensor_parallel"] = engine.tensor_parallel
    for name, part in parts.items():
        if layout.gpus % part:
            raise ValueError(f"{name} is {part}, which does not divide {layout.gpus} GPUs evenly.")
