"""The sizes of a causal language model, from its ``config.json``: parameters, and what one token keeps in memory.

Worked example: SmolLM2-135M has 30 layers of 576, 9 query and 3 key-value heads of 64, and shares its embedding of
49,152 rows with the output layer: 134,515,008 parameters, and 2 · 30 · 3 · 64 = 11,520 numbers of keys and values for
each token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "qwen3_5_text", "qwen3_5_moe_text")
"""Values of ``model_type`` whose sizes are known here."""
_NORMED_HEADS = ("qwen3", "qwen3_moe", "qwen3_5_text", "qwen3_5_moe_text")
_CHUNK = 64
"""Tokens between the states that a gated delta network keeps for its backward pass (flash-linear-attention)."""


class UnknownShapeError(ValueError):
    """This config's sizes cannot be told; the message says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts in the place of a layer's MLP; ``shared``: the width of the one that every token uses."""

    count: int
    per_token: int
    width: int
    shared: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttention:
    """A gated delta network (Qwen3-Next, Qwen3.5): a state of fixed size per sequence instead of keys and values."""

    layers: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    @property
    def value_width(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def convolved(self) -> int:
        """Channels of the short convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_width

    @property
    def state(self) -> int:
        """Numbers in one layer's recurrent state, of one sequence."""
        return self.value_heads * self.key_dim * self.value_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What decides a model's memory. Counts are of numbers, not of bytes."""

    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    """The output layer is the embedding."""
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    expert_layers: int = 0
    experts: Experts | None = None
    linear: LinearAttention | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelShape:
        """From the JSON object of a model directory's ``config.json``. Raises `UnknownShapeError`."""
        text: Mapping[str, Any] = config.get("text_config", config)
        family = str(text.get("model_type", config.get("model_type", "")))
        if family not in FAMILIES:
            raise UnknownShapeError(
                f"The sizes of model type {family!r} are not known here, only those of {', '.join(FAMILIES)}."
            )
        try:
            return cls(**_sizes(text, family), tied=bool(text.get("tie_word_embeddings", _outer_tie(config))))
        except KeyError as error:
            raise UnknownShapeError(f"The config of model type {family!r} has no {error}.") from error

    @property
    def full_layers(self) -> int:
        """Layers with keys and values."""
        return self.layers - (self.linear.layers if self.linear else 0)

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.outside_layers + self._attention() + self._mlps(self.experts.count if self.experts else 0)

    @property
    def active_parameters(self) -> int:
        """Those that one token goes through: of the experts, the chosen ones."""
        return self.outside_layers + self._attention() + self._mlps(self.experts.per_token if self.experts else 0)

    @property
    def outside_layers(self) -> int:
        """Embedding, output layer and last norm."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2) + self.hidden

    @property
    def largest_layer(self) -> int:
        mlp = self._expert_mlp(self.experts.count) if self.experts and self.expert_layers else self._dense_mlp()
        linear = self._linear_layer(self.linear) if self.linear else 0
        return max(self._full_attention(), linear) + mlp + 2 * self.hidden

    @property
    def kv_per_token(self) -> int:
        """Numbers of keys and values that one token keeps."""
        return 2 * self.full_layers * self.kv_heads * self.head_dim

    def adapters(self, rank: int) -> int:
        """Parameters of LoRA of this rank beside every linear layer but experts, router, embedding and output layer.

        A matrix of [out, in] gets rank · (in + out) (Hu et al., 2021).
        """
        h, q, kv = self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = (h + q * self._gated) + 2 * (h + kv) + (q + h)
        dense = 3 * (h + self.intermediate)
        shared = 3 * (h + self.experts.shared) if self.experts and self.experts.shared else 0
        total = self.full_layers * attention + (self.layers - self.expert_layers) * dense + self.expert_layers * shared
        if self.linear:
            width = self.linear.value_width
            total += self.linear.layers * ((h + self.linear.convolved) + (h + width) + (width + h))
        return rank * total

    def activations(self) -> tuple[float, float]:
        """Numbers that one token keeps for the backward pass: (all layers together, the largest layer).

        Counted over the tensors that the layers' operations save, with fused attention, so without a term in the
        square of the length: inputs and outputs of both norms, queries, keys, values, what was attended to, and the
        four tensors of SwiGLU. The method is that of Korthikanti et al., 2022, "Reducing Activation Recomputation".
        """
        attention = [(self._attention_kept(), self.full_layers)]
        if self.linear:
            attention.append((self._linear_kept(self.linear), self.linear.layers))
        mlps = [(4.0 * self.intermediate, self.layers - self.expert_layers)]
        if self.experts:
            mlps.append((self._experts_kept(self.experts), self.expert_layers))
        norms = 4.0 * self.hidden
        total = sum(kept * count for kept, count in (*attention, *mlps)) + norms * self.layers
        largest = max(kept for kept, count in attention if count) + max(kept for kept, count in mlps if count)
        return total, largest + norms

    @property
    def _gated(self) -> int:
        """Qwen3.5's queries come with a gate of their own size."""
        return 2 if self.family.startswith("qwen3_5") else 1

    def _attention_kept(self) -> float:
        queries = self.heads * self.head_dim
        return (3 + 2 * (self._gated - 1)) * queries + 2 * self.kv_heads * self.head_dim

    def _linear_kept(self, linear: LinearAttention) -> float:
        return 2 * linear.convolved + 4 * linear.value_width + 2 * linear.state / _CHUNK

    def _experts_kept(self, experts: Experts) -> float:
        return experts.per_token * (2 * self.hidden + 4 * experts.width) + 4 * experts.shared + 2 * experts.count

    def _attention(self) -> int:
        """Attention and norms of all layers."""
        linear = self.linear.layers * self._linear_layer(self.linear) if self.linear else 0
        return self.full_layers * self._full_attention() + linear + 2 * self.hidden * self.layers

    def _full_attention(self) -> int:
        h, q, kv = self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim
        norms = 2 * self.head_dim if self.family in _NORMED_HEADS else 0
        biases = (q + 2 * kv) * self.qkv_bias + h * self.output_bias
        return h * q * self._gated + 2 * h * kv + q * h + norms + biases

    def _linear_layer(self, linear: LinearAttention) -> int:
        h, width = self.hidden, linear.value_width
        projections = h * (linear.convolved + width + 2 * linear.value_heads) + width * h
        return projections + linear.convolved * linear.kernel + 2 * linear.value_heads + linear.value_dim

    def _mlps(self, experts: int) -> int:
        return (self.layers - self.expert_layers) * self._dense_mlp() + self.expert_layers * self._expert_mlp(experts)

    def _dense_mlp(self) -> int:
        return 3 * self.hidden * self.intermediate + (2 * self.intermediate + self.hidden) * self.mlp_bias

    def _expert_mlp(self, counted: int) -> int:
        if self.experts is None:
            return 0
        router = self.hidden * self.experts.count
        shared = 3 * self.hidden * self.experts.shared + self.hidden if self.experts.shared else 0
        return router + counted * 3 * self.hidden * self.experts.width + shared


def _outer_tie(config: Mapping[str, Any]) -> bool:
    return bool(config.get("tie_word_embeddings", False))


def _sizes(text: Mapping[str, Any], family: str) -> dict[str, Any]:
    heads, layers = int(text["num_attention_heads"]), int(text["num_hidden_layers"])
    bias = bool(text.get("attention_bias", family == "qwen2"))
    return {
        "family": family,
        "hidden": int(text["hidden_size"]),
        "layers": layers,
        "heads": heads,
        "kv_heads": int(text.get("num_key_value_heads") or heads),
        "head_dim": int(text.get("head_dim") or int(text["hidden_size"]) // heads),
        "intermediate": int(text["intermediate_size"])
        if "moe" not in family
        else int(text.get("intermediate_size", 0)),
        "vocabulary": int(text["vocab_size"]),
        "qkv_bias": bias,
        "output_bias": bias and family != "qwen2",
        "mlp_bias": bool(text.get("mlp_bias", False)),
        "expert_layers": _expert_layers(text, layers) if "moe" in family else 0,
        "experts": _experts(text) if "moe" in family else None,
        "linear": _linear(text, layers) if family.startswith("qwen3_5") else None,
    }


def _expert_layers(text: Mapping[str, Any], layers: int) -> int:
    dense, every = set(text.get("mlp_only_layers") or ()), int(text.get("decoder_sparse_step", 1))
    return sum(index not in dense and (index + 1) % every == 0 for index in range(layers))


def _experts(text: Mapping[str, Any]) -> Experts:
    return Experts(
        count=int(text["num_local_experts"] if "num_local_experts" in text else text["num_experts"]),
        per_token=int(text["num_experts_per_tok"]),
        width=int(text["moe_intermediate_size"]),
        shared=int(text.get("shared_expert_intermediate_size") or 0),
    )


def _linear(text: Mapping[str, Any], layers: int) -> LinearAttention:
    kinds, every = text.get("layer_types"), int(text.get("full_attention_interval", 4))
    linear = sum(kind == "linear_attention" for kind in kinds) if kinds else layers - layers // every
    return LinearAttention(
        layers=linear,
        key_heads=int(text["linear_num_key_heads"]),
        value_heads=int(text["linear_num_value_heads"]),
        key_dim=int(text["linear_key_head_dim"]),
        value_dim=int(text["linear_value_head_dim"]),
        kernel=int(text["linear_conv_kernel_dim"]),
    )
