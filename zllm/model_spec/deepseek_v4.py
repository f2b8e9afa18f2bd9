"""DeepSeek V4: compressed attention behind hyper-connections, experts in every layer."""

from __future__ import annotations

from dataclasses import dataclass

from zllm.model_spec import fields, latent, rope
from zllm.model_spec.fields import Fields
from zllm.model_spec.latent import Index
from zllm.model_spec.rope import Rope

MODEL_TYPES = ("deepseek_v4",)
ACTIVATIONS = ("silu",)
SCORES = {"sqrtsoftplus": "sqrt_softplus", "softmax": "softmax", "sigmoid": "sigmoid"}

SLIDING = "sliding_attention"
SPARSE, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
# transformers, DeepseekV4Config: of published configs' `compress_ratios`, and the defaults.
RATES = {SPARSE: 4, HEAVY: 128}
HASH, ROUTED = "hash_moe", "moe"


@dataclass(frozen=True, slots=True)
class Compression:
    """What a layer sees beyond its window."""

    rate: int  # m, tokens per entry
    chosen: bool  # entries of overlapping windows, among which an indexer chooses; else all


@dataclass(frozen=True, slots=True)
class Experts:
    """Every layer has routed experts and one that every token meets."""

    experts: int  # E
    chosen: int  # per token
    width: int  # F of one expert
    shared_width: int  # F of the expert that every token meets; 0: there is none
    score: str
    normalise: bool
    scale: float
    limit: float  # clamps gate and up
    by_token: tuple[bool, ...]  # per layer: a table by token id names the experts


@dataclass(frozen=True, slots=True)
class HyperConnection:
    streams: int  # N
    eps: float
    iterations: int  # of Sinkhorn


@dataclass(frozen=True, slots=True)
class DeepseekV4Config:
    vocabulary: int  # V
    width: int  # D
    heads: int  # H
    head_size: int  # K
    rotated: int  # r, the last numbers of a head
    context: int
    norm_eps: float
    query_rank: int  # Q
    output_groups: int  # G
    output_rank: int  # of a group
    window: int
    compression: tuple[Compression | None, ...]  # per layer
    rope: Rope  # of layers that see a window only
    compressed_rope: Rope  # of the others
    index: Index  # top_k counts entries
    experts: Experts
    hyper: HyperConnection
    tied_embeddings: bool

    @property
    def layers(self) -> int:
        return len(self.compression)


def from_hf(config: Fields) -> DeepseekV4Config:
    """The spec of a `config.json`, as published or as transformers writes it.

    ValueError names the field, got and expected.
    """
    fields.choice(config, "hidden_act", ACTIVATIONS, "silu")
    layers, heads = (fields.size(config, k) for k in ("num_hidden_layers", "num_attention_heads"))
    # Defaults here and below: transformers, DeepseekV4Config.
    context = fields.size(config, "max_position_embeddings", 1048576)
    head_size = fields.size(config, "head_dim", 512)
    rotated = _rotated(config, head_size)
    main, compressed = _ropes(config, context)
    _refuse_variants(config)
    return DeepseekV4Config(
        vocabulary=fields.size(config, "vocab_size"),
        width=fields.size(config, "hidden_size"),
        heads=heads,
        head_size=head_size,
        rotated=rotated,
        context=context,
        norm_eps=fields.positive(config, "rms_norm_eps", 1e-6),
        query_rank=fields.size(config, "q_lora_rank", 1024),
        output_groups=_divisor(config, "o_groups", heads, 8),
        output_rank=fields.size(config, "o_lora_rank", 1024),
        window=fields.size(config, "sliding_window", 128),
        compression=_compression(config, layers),
        rope=main,
        compressed_rope=compressed,
        index=latent.index_from_hf(config, rotated),
        experts=_experts(config, layers),
        hyper=HyperConnection(
            fields.size(config, "hc_mult", 4),
            fields.positive(config, "hc_eps", 1e-6),
            fields.size(config, "hc_sinkhorn_iters", 20),
        ),
        tied_embeddings=fields.flag(config, "tie_word_embeddings", False),
    )


def _refuse_variants(config: Fields) -> None:
    """What the fields could say, but no model of this type does."""
    if (kv_heads := fields.size(config, "num_key_value_heads", 1)) != 1:
        raise ValueError(f"num_key_value_heads: got {kv_heads}, expected 1: all heads share it")
    for key in ("attention_bias", "mlp_bias"):
        if fields.flag(config, key, False):
            raise ValueError(f"{key}: got true, this model has no biases: expected false")


def _divisor(config: Fields, key: str, whole: int, default: int) -> int:
    found = fields.size(config, key, default)
    if whole % found:
        raise ValueError(f"{key}: got {found}, expected a divisor of {whole}")
    return found


def _rotated(config: Fields, head_size: int) -> int:
    """`partial_rotary_factor` of a head, or the older `qk_rope_head_dim`."""
    if config.get("partial_rotary_factor") is not None:
        key, found = "partial_rotary_factor", fields.positive(config, "partial_rotary_factor")
        rotated = int(found * head_size)
    else:
        key, rotated = "qk_rope_head_dim", fields.size(config, "qk_rope_head_dim", head_size // 8)
    if rotated % 2 or not 0 < rotated <= head_size:
        raise ValueError(
            f"{key}: got {config.get(key)}, so that {rotated} of {head_size} numbers of a head"
            " turn; expected an even number of them: pairs turn"
        )
    return rotated


def _ropes(config: Fields, context: int) -> tuple[Rope, Rope]:
    """Sections `main` and `compress`; in published configs the scaling is of the second."""
    sections = fields.section(config, "rope_parameters") or fields.section(config, "rope_scaling")
    theta = fields.positive(config, "rope_theta", 10000.0)
    compressed_theta = fields.positive(config, "compress_rope_theta", 160000.0)
    if "main" in sections or "compress" in sections:
        main, compressed = (fields.section(sections, key) for key in ("main", "compress"))
    else:
        main, compressed = {}, {**sections, "rope_theta": compressed_theta}
    # The released code multiplies neither cos nor sin, whatever YaRN's formula says.
    compressed = {"attention_factor": 1.0, **compressed}
    return (
        rope.of_section(main, context, theta=theta),
        rope.of_section(compressed, context, theta=compressed_theta),
    )


def _compression(config: Fields, layers: int) -> tuple[Compression | None, ...]:
    """`layer_types` with `compress_rates`, or the published `compress_ratios` of tokens."""
    kinds = config.get("layer_types")
    if kinds is None:
        return _of_ratios(config, layers)
    rates = {**RATES, **fields.section(config, "compress_rates")}
    of_kind: dict[str, Compression | None] = {SLIDING: None}
    for kind in (SPARSE, HEAVY):
        of_kind[kind] = Compression(fields.size(rates, kind), chosen=kind == SPARSE)
    return tuple(of_kind[kind] for kind in _kinds(config, "layer_types", tuple(of_kind), layers))


def _of_ratios(config: Fields, layers: int) -> tuple[Compression | None, ...]:
    """One more than there are layers for each layer of multi-token prediction."""
    ratios = config.get("compress_ratios")
    known = isinstance(ratios, list) and all(ratio in (0, *RATES.values()) for ratio in ratios)
    if not isinstance(ratios, list) or not known or len(ratios) < layers:
        raise ValueError(
            f"compress_ratios: got {ratios!r:.200}, expected 0, 4 or 128 for each of {layers}"
            " layers, or layer_types"
        )
    return tuple(
        Compression(ratio, chosen=ratio == RATES[SPARSE]) if ratio else None
        for ratio in ratios[:layers]
    )


def _experts(config: Fields, layers: int) -> Experts:
    experts = fields.size(config, "n_routed_experts")
    width = fields.size(config, "moe_intermediate_size")
    if config.get("mlp_layer_types") is None:
        hashed = fields.count(config, "num_hash_layers", 3)
        by_token = tuple(i < hashed for i in range(layers))
    else:
        kinds = _kinds(config, "mlp_layer_types", (HASH, ROUTED), layers)
        by_token = tuple(kind == HASH for kind in kinds)
    return Experts(
        experts=experts,
        chosen=fields.at_most(config, "num_experts_per_tok", experts),
        width=width,
        shared_width=width * fields.count(config, "n_shared_experts", 1),
        score=SCORES[fields.choice(config, "scoring_func", tuple(SCORES), "sqrtsoftplus")],
        normalise=fields.flag(config, "norm_topk_prob", True),
        scale=fields.positive(config, "routed_scaling_factor", 1.5),
        limit=fields.positive(config, "swiglu_limit", 10.0),
        by_token=by_token,
    )


def _kinds(config: Fields, key: str, known: tuple[str, ...], layers: int) -> list[str]:
    found = config.get(key)
    valid = isinstance(found, list) and all(kind in known for kind in found)
    if not isinstance(found, list) or not valid or len(found) != layers:
        raise ValueError(
            f"{key}: got {found!r:.200}, expected one of {', '.join(known)} for each of {layers}"
            " layers"
        )
    return found
