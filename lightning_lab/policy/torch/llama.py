"""The forward pass of Llama-like models as plain functions on the model's own parameters.

For models of a few million parameters most of a step is the overhead of modules, so this pass calls about 25
operations per layer and nothing else. It works on the very tensors that the learner trains. `best_forward` gives it
for architectures it knows, and only if it agrees with the model's own forward pass.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as nn
from torch import Tensor
from transformers import PreTrainedModel

from lightning_lab.policy.torch.forward import Forward, HuggingFaceForward, Reader
from lightning_lab.policy.torch.kv import KvSlots, KvStore
from lightning_lab.policy.torch.packing import Packed
from lightning_lab.records import Ids

_log = logging.getLogger(__name__)

_LAYERS = {"LlamaDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer", "MistralDecoderLayer"}


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: Tensor
    query: tuple[Tensor, Tensor | None]
    key: tuple[Tensor, Tensor | None]
    value: tuple[Tensor, Tensor | None]
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: tuple[Tensor, Tensor | None]
    mlp_norm: Tensor
    gate: tuple[Tensor, Tensor | None]
    up: tuple[Tensor, Tensor | None]
    down: tuple[Tensor, Tensor | None]


class LlamaForward:
    """RMSNorm, rotary attention with grouped queries, SwiGLU."""

    def __init__(self, model: PreTrainedModel, max_length: int) -> None:
        inner: Any = model.base_model
        config = model.config
        self._embedding: Tensor = inner.embed_tokens.weight
        self._layers = [_layer(layer) for layer in inner.layers]
        self._norm: Tensor = inner.norm.weight
        self._head: Tensor = model.get_output_embeddings().weight
        self._epsilon = float(config.rms_norm_eps)
        self._heads, self._kv_heads = int(config.num_attention_heads), int(config.num_key_value_heads)
        self._head_dim = int(inner.layers[0].self_attn.head_dim)
        self._scale = float(inner.layers[0].self_attn.scaling)
        positions = torch.arange(max_length, device=model.device).unsqueeze(0)
        with torch.no_grad():
            cos, sin = inner.rotary_emb(self._embedding[:1].unsqueeze(0), positions)
        # rotate_half(x) · sin = swapped halves · (−sin, sin)
        half = self._head_dim // 2
        self._cos: Tensor = cos[0].contiguous()
        self._sin: Tensor = torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1)

    def __call__(self, kv: KvStore, ids: Tensor, positions: Tensor, mask: Tensor, rows: Tensor, at: Tensor) -> Tensor:
        count, tokens = ids.shape
        packed = kv if isinstance(kv, Packed) else None
        # Queries that share keys are stacked along the token axis, so that no key is repeated.
        mask = mask if packed is not None or tokens == 1 else mask.repeat(1, 1, self._heads // self._kv_heads, 1)
        cos, sin = self._cos[positions].unsqueeze(2), self._sin[positions].unsqueeze(2)
        hidden = nn.embedding(ids, self._embedding)
        for index, layer in enumerate(self._layers):
            normed = self._rms(hidden, layer.attention_norm)
            query, key = self._rotated(layer, normed, cos, sin)
            value = nn.linear(normed, *layer.value).view(count, tokens, self._kv_heads, self._head_dim)
            if packed is not None:
                attended = packed.attend(index, query, key, value, self._scale)
            else:
                attended = self._attended(query, *kv.write(index, key, value), mask)
            hidden = hidden + nn.linear(attended.reshape(count, tokens, -1), *layer.output)
            normed = self._rms(hidden, layer.mlp_norm)
            gated = nn.silu(nn.linear(normed, *layer.gate)) * nn.linear(normed, *layer.up)
            hidden = hidden + nn.linear(gated, *layer.down)
        return nn.linear(self._rms(hidden[rows, at], self._norm), self._head)

    def _attended(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Queries [rows, tokens, heads, head_dim] → what they attend to, in that layout."""
        count, tokens = query.shape[:2]
        groups = self._heads // self._kv_heads
        query = query.view(count, tokens, self._kv_heads, groups, self._head_dim).permute(0, 2, 3, 1, 4)
        attended = nn.scaled_dot_product_attention(
            query.reshape(count, self._kv_heads, groups * tokens, self._head_dim),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=mask,
            scale=self._scale,
        )
        return attended.reshape(count, self._heads, tokens, self._head_dim).transpose(1, 2)

    def _rotated(self, layer: _Layer, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys, [rows, tokens, heads, head_dim], with rotary positions."""
        rows, tokens, _ = hidden.shape
        query = nn.linear(hidden, *layer.query).view(rows, tokens, self._heads, self._head_dim)
        key = nn.linear(hidden, *layer.key).view(rows, tokens, self._kv_heads, self._head_dim)
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = self._rms(query, layer.query_norm), self._rms(key, layer.key_norm)
        both = torch.cat((query, key), dim=2)
        both = both * cos + both.roll(self._head_dim // 2, dims=-1) * sin
        return both[:, :, : self._heads], both[:, :, self._heads :]

    def _rms(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return nn.rms_norm(hidden, (hidden.shape[-1],), weight, self._epsilon)


def best_forward(model: PreTrainedModel, max_length: int) -> Forward:
    """The fast pass where it fits this model and agrees with it, else the model's own."""
    if _known(model):
        difference = _disagreement(model)
        if difference < 1e-3:
            return LlamaForward(model, max_length)
        _log.warning("the fast forward pass differs from the model's own by %.2g; using the model's own", difference)
    return HuggingFaceForward(model)


def _known(model: PreTrainedModel) -> bool:
    layers = getattr(model.base_model, "layers", None)
    config = model.config
    return (
        layers is not None
        and all(type(layer).__name__ in _LAYERS for layer in layers)
        and getattr(config, "hidden_act", "") in ("silu", "swish")
        and getattr(model.base_model.rotary_emb, "rope_type", "") in ("default", "linear", "llama3", "yarn")
        and model.dtype == torch.float32
    )


@torch.no_grad()
def _disagreement(model: PreTrainedModel) -> float:
    """Largest difference of the logits on two short rows, relative to their size."""
    rows = [torch.arange(length, dtype=torch.int32).numpy() % model.config.vocab_size for length in (7, 3)]
    both: tuple[Forward, Forward] = (HuggingFaceForward(model), LlamaForward(model, 8))
    own, fast = (_logits(model, forward, rows) for forward in both)
    return float((own - fast).abs().max() / own.abs().max().clamp_min(1.0))


def _logits(model: PreTrainedModel, forward: Forward, rows: list[Ids]) -> Tensor:
    kv = KvSlots(int(model.config.num_hidden_layers), max_rows=2, max_length=8)
    return Reader(forward, kv, dtype=model.dtype, device=model.device).read(rows, [0, 0], 0)


def _layer(layer: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    return _Layer(
        attention_norm=layer.input_layernorm.weight,
        query=_linear(attention.q_proj),
        key=_linear(attention.k_proj),
        value=_linear(attention.v_proj),
        query_norm=getattr(getattr(attention, "q_norm", None), "weight", None),
        key_norm=getattr(getattr(attention, "k_norm", None), "weight", None),
        output=_linear(attention.o_proj),
        mlp_norm=layer.post_attention_layernorm.weight,
        gate=_linear(mlp.gate_proj),
        up=_linear(mlp.up_proj),
        down=_linear(mlp.down_proj),
    )


def _linear(module: Any) -> tuple[Tensor, Tensor | None]:
    return module.weight, module.bias
