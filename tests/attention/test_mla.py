"""Latent attention: absorbed and expanded forms agree, with each other and with f64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers.golden import F32, recorded, tensors
from zllm import norm, rope
from zllm.attention import mla
from zllm.attention.mla import MlaSpec
from zllm.norm import RmsNormSpec
from zllm.rope import RopeSpec

SPECS = {  # H, n, r, v, R
    "rotated": MlaSpec(4, 12, 8, 10, 20, 20**-0.5),
    "no rotated part": MlaSpec(3, 8, 0, 6, 16, 8**-0.5),
    "scaled": MlaSpec(2, 4, 2, 9, 5, 0.9),
    "one head": MlaSpec(1, 6, 4, 6, 7, 10**-0.5),
}
each_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def inputs(spec: MlaSpec, rows: int, keys: int, seed: int = 1) -> tuple[F32, F32, F32]:
    """q [T, H, n+r], latents [S, R+r], kv_b [H·(n+v), R]."""
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((rows, spec.heads, spec.nope + spec.rotated))
    latents = rng.standard_normal((keys, spec.rank + spec.rotated))
    kv_b = rng.standard_normal((spec.heads * (spec.nope + spec.value), spec.rank))
    return q.astype(np.float32), latents.astype(np.float32), kv_b.astype(np.float32)


def truth(
    q: F32, latents: F32, kv_b: F32, visible: NDArray[np.bool_], spec: MlaSpec
) -> NDArray[np.float64]:
    """Head by head, row by row, in f64; `visible` [T, S]."""
    out = np.zeros((len(q), spec.heads, spec.value))
    latents64, size = latents.astype(np.float64), spec.nope + spec.value
    c, k_rope = latents64[:, : spec.rank], latents64[:, spec.rank :]
    for head in range(spec.heads):
        own = kv_b[head * size : (head + 1) * size].astype(np.float64)
        keys = np.concatenate([c @ own[: spec.nope].T, k_rope], axis=1)
        values = c @ own[spec.nope :].T
        for row, sees in enumerate(visible):
            if not sees.any():
                continue
            scores = keys[sees] @ q[row, head] * spec.scale
            weights = np.exp(scores - scores.max())
            out[row, head] = weights @ values[sees] / weights.sum()
    return out


@each_spec
@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (1, 30), (5, 5), (7, 40)], ids=str)
def test_absorbed_and_expanded_equal_the_formula(spec: MlaSpec, rows: int, keys: int) -> None:
    q, latents, kv_b = inputs(spec, rows, keys)
    own = np.tri(rows, dtype=np.bool_)
    visible = np.concatenate([np.ones((rows, keys - rows), np.bool_), own], axis=1)
    wanted = truth(q, latents, kv_b, visible, spec)
    tolerance = 1e-5 * np.abs(wanted).max()
    absorbed = mla.attend_absorbed(q, latents, kv_b, own, spec)
    np.testing.assert_allclose(absorbed, wanted, atol=tolerance)
    expanded = mla.attend_expanded(q, *mla.expand(latents, kv_b, spec), own, spec)
    np.testing.assert_allclose(expanded, wanted, atol=tolerance)
    np.testing.assert_allclose(absorbed, expanded, atol=tolerance)


@each_spec
def test_chosen_keys_equal_a_dense_softmax_over_them(spec: MlaSpec) -> None:
    rows, keys, width = 6, 25, 9
    q, latents, kv_b = inputs(spec, rows, keys)
    rng = np.random.default_rng(2)
    picked = np.stack([rng.choice(keys, width, replace=False) for _ in range(rows)])
    valid = np.arange(width) < np.array([9, 4, 1, 0, 9, 7])[:, None]
    visible = np.zeros((rows, keys), np.bool_)
    for row in range(rows):
        visible[row, picked[row, valid[row]]] = True
    found = mla.attend_chosen(q, latents[picked], kv_b, valid, spec)
    wanted = truth(q, latents, kv_b, visible, spec)
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())
    assert not found[3].any(), "a row that sees nothing gives zeros"


def test_out_is_written_and_inputs_are_left_alone() -> None:
    spec = SPECS["rotated"]
    q, latents, kv_b = inputs(spec, 3, 8)
    before = [array.copy() for array in (q, latents, kv_b)]
    out = np.full((3, spec.heads, spec.value), np.nan, np.float32)
    k, v = mla.expand(latents, kv_b, spec)
    picked, all_of_them = latents[None].repeat(3, axis=0), np.ones((3, 8), np.bool_)
    forms = [
        lambda: mla.attend_absorbed(q, latents, kv_b, None, spec, out=out),
        lambda: mla.attend_expanded(q, k, v, None, spec, out=out),
        lambda: mla.attend_chosen(q, picked, kv_b, all_of_them, spec, out=out),
    ]
    for form in forms:
        out[:] = np.nan
        assert form() is out and np.isfinite(out).all()
    for array, kept in zip((q, latents, kv_b), before, strict=True):
        assert np.array_equal(array, kept)


def test_the_cheaper_form_is_the_one_with_fewer_products() -> None:
    """The published sizes: one row over anything is absorbed, a long first prompt is expanded."""
    spec = MlaSpec(128, 128, 64, 128, 512, 192**-0.5)
    assert mla.absorbed_is_cheaper(1, 2, spec) and mla.absorbed_is_cheaper(1, 100_000, spec)
    assert mla.absorbed_is_cheaper(2, 4096, spec)
    assert not mla.absorbed_is_cheaper(512, 512, spec)
    assert not mla.absorbed_is_cheaper(512, 4096, spec)
    small = replace(spec, rank=32)  # a latent smaller than a head: absorbed throughout
    assert mla.absorbed_is_cheaper(512, 512, small)


@pytest.mark.parametrize(("folder", "layers"), [("deepseek_v32", 3), ("glm_moe_dsa", 2)])
def test_equals_the_recorded_attention(folder: str, layers: int) -> None:
    """From the recorded latents, rotated keys and selection of each layer to its output."""
    golden, w = recorded(folder), tensors(folder)
    yarn = folder == "deepseek_v32"
    scale = (0.1 * 0.7 * np.log(8) + 1) ** 2 if yarn else 1.0
    spec = MlaSpec(4, 12, 8, 10, 20, 20**-0.5 * scale)
    own_mscale = (0.1 * np.log(8) + 1) / (0.1 * 0.7 * np.log(8) + 1)
    table = rope.table(
        RopeSpec(8, 1e4, "yarn", 8.0, original_context=64, attention_factor=own_mscale)
        if yarn
        else RopeSpec(8, 1e5),
        64,
    )
    for layer in range(layers):
        at = f"model.layers.{layer}."
        x = golden["p0_hs_in" if layer == 0 else f"p0_hs_{layer - 1}"]
        h = norm.rms_norm(x, w[f"{at}input_layernorm.weight"], RmsNormSpec(1e-3))
        down = h @ w[f"{at}self_attn.q_a_proj.weight"].T
        latent = norm.rms_norm(down, w[f"{at}self_attn.q_a_layernorm.weight"], RmsNormSpec(1e-6))
        q = (latent @ w[f"{at}self_attn.q_b_proj.weight"].T).reshape(len(x), 4, 20)
        turned = rope.rotate(q[..., 12:], table[: len(x)], interleaved=True)
        # The reference keeps the first members of all pairs in front.
        q[..., 12:] = np.concatenate([turned[..., 0::2], turned[..., 1::2]], axis=-1)
        keys = np.concatenate(
            [golden[f"p0_cache_k_{layer}"][0], golden[f"p0_cache_v_{layer}"][0]], axis=1
        )
        picked = golden[f"p0_topk_{layer}"]
        visible = picked <= np.arange(len(x))[:, None]
        kv_b = w[f"{at}self_attn.kv_b_proj.weight"]
        heads = mla.attend_chosen(q, keys[picked], kv_b, visible, spec)
        found = heads.reshape(len(x), -1) @ w[f"{at}self_attn.o_proj.weight"].T
        wanted = golden[f"p0_attn_{layer}"]
        np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())
