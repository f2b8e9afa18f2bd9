"""Names and shapes of dense decoders, in Hugging Face folders and in GGUF files.

Canonical names: `embed`, `norm`, `head` (absent when tied to `embed`), and in each layer
`layers.{i}.` + `attn_norm q k v o ffn_norm gate up down`, in some models also `q_norm k_norm
post_attn_norm post_ffn_norm`; a bias appends `.bias`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from zllm.model_spec.dense import DenseConfig
from zllm.weight.names import Expected

QKV = frozenset("qkv")
ATTENTION = QKV | {"o"}
MLP = frozenset({"gate", "up", "down"})
NORMS = ("attn_norm", "ffn_norm")
NORMED_HEADS = ("q_norm", "k_norm")


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a container names things; `parts` are those of a layer, by canonical name."""

    embed: str
    norm: str
    head: str
    layer: str
    parts: Mapping[str, str]

    def renamed(self, **parts: str) -> Scheme:
        return replace(self, parts={**self.parts, **parts})

    def under(self, prefix: str) -> Scheme:
        """The text model inside a larger one: `prefix` stands where `model.` did."""
        names = (self.embed, self.norm, self.layer)
        embed, norm, layer = (prefix + name.removeprefix("model.") for name in names)
        return replace(self, embed=embed, norm=norm, layer=layer)


# transformers, models/llama/modeling_llama.py
HF = Scheme(
    "model.embed_tokens",
    "model.norm",
    "lm_head",
    "model.layers.{}.",
    {
        "attn_norm": "input_layernorm",
        "q": "self_attn.q_proj",
        "k": "self_attn.k_proj",
        "v": "self_attn.v_proj",
        "q_norm": "self_attn.q_norm",
        "k_norm": "self_attn.k_norm",
        "o": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    },
)
# ggml, docs/gguf.md: standardized tensor names
GGUF = Scheme(
    "token_embd",
    "output_norm",
    "output",
    "blk.{}.",
    {
        "attn_norm": "attn_norm",
        "q": "attn_q",
        "k": "attn_k",
        "v": "attn_v",
        "q_norm": "attn_q_norm",
        "k_norm": "attn_k_norm",
        "o": "attn_output",
        "ffn_norm": "ffn_norm",
        "gate": "ffn_gate",
        "up": "ffn_up",
        "down": "ffn_down",
    },
)

# Rotary frequencies follow from the config; early checkpoints stored them as buffers.
_INV_FREQ = r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"
# What the config takes in (rope_*), and the old spelling of inv_freq.
GGUF_SKIP = re.compile(r"rope_(freqs|factors_(long|short))\.weight|blk\.\d+\.attn_rot_embd\.weight")


def hf_skip(spec: DenseConfig, *more: str) -> re.Pattern[str]:
    """Names to leave out; a tied checkpoint may store its head: transformers ignores it too."""
    tied = (r"(language_model\.)?lm_head\.weight",) if spec.tied_embeddings else ()
    return re.compile("|".join((_INV_FREQ, *tied, *more)))


def expected(
    spec: DenseConfig,
    scheme: Scheme,
    *,
    norms: tuple[str, ...] = NORMS,
    head_norms: tuple[str, ...] = (),
    biased: frozenset[str] = frozenset(),
    sparse: tuple[bool, ...] = (),
) -> Iterator[Expected]:
    """Every tensor of the model. norms: [D], head_norms: [K], `biased`: the parts with a bias.

    `sparse`: per layer whether experts, which are not among these tensors, stand for the MLP.
    """
    table = (spec.vocabulary, spec.width)
    yield Expected("embed", f"{scheme.embed}.weight", table)
    yield Expected("norm", f"{scheme.norm}.weight", (spec.width,))
    if not spec.tied_embeddings:
        yield Expected("head", f"{scheme.head}.weight", table)
    shapes = {
        **dict.fromkeys(norms, (spec.width,)),
        **dict.fromkeys(head_norms, (spec.head_size,)),
        **_matrices(spec),
    }
    for layer in range(spec.layers):
        for part, shape in shapes.items():
            if part in MLP and sparse and sparse[layer]:
                continue
            name = f"layers.{layer}.{part}"
            stored_name = scheme.layer.format(layer) + scheme.parts[part]
            yield Expected(name, f"{stored_name}.weight", shape)
            if part in biased:
                yield Expected(f"{name}.bias", f"{stored_name}.bias", shape[:1])


def _matrices(spec: DenseConfig) -> dict[str, tuple[int, ...]]:
    d, f = spec.width, spec.ffn_width
    q, kv = spec.heads * spec.head_size, spec.kv_heads * spec.head_size
    return {
        "q": (q, d),
        "k": (kv, d),
        "v": (kv, d),
        "o": (d, q),
        "gate": (f, d),
        "up": (f, d),
        "down": (d, f),
    }
