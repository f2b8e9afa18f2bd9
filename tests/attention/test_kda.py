"""KDA against the reference implementation's recorded values, and its two forms against f64."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers.golden import F32, recorded, tensors
from zllm import norm
from zllm.attention import kda
from zllm.attention.kda import DecaySpec

# folder, prefix of its layer names, layer, bound of the decay, eps of its norms
RECORDED = [
    pytest.param("kimi_linear", "model.layers", 0, 0.0, 1e-3, id="softplus"),
    pytest.param("glm5_next", "model.language_model.layers", 0, -5.0, 1e-4, id="bounded"),
    pytest.param("glm5_next", "model.language_model.layers", 4, -5.0, 1e-4, id="bounded-late"),
    pytest.param("glm5_next_b", "model.language_model.layers", 1, 0.0, 1e-3, id="3-taps"),
]


class Layer:
    """One KDA layer of a folder, fed with its recorded input."""

    def __init__(self, folder: str, prefix: str, layer: int, bound: float, eps: float) -> None:
        self.w = {
            name.removeprefix(f"{prefix}.{layer}.self_attn."): array
            for name, array in tensors(folder).items()
            if name.startswith(f"{prefix}.{layer}.")
        }
        self.golden, self.layer, self.eps = recorded(folder), layer, eps
        size = self.w["o_norm.weight"].size
        self.spec = DecaySpec(self.w["A_log"].size, size, bound)
        x = self.golden.get(f"p0_attn_hc_in_{layer}", self.golden["p0_hs_in"])
        w = self.w[f"{prefix}.{layer}.input_layernorm.weight"]
        self.x = norm.rms_norm(x, w, norm.RmsNormSpec(eps))

    def linear(self, name: str, x: F32) -> F32:
        return x @ self.w[f"{name}.weight"].T

    def heads(self, x: F32) -> F32:
        return x.reshape(len(x), self.spec.heads, self.spec.head_size)

    def decay(self) -> F32:
        a = self.linear("f_b_proj", self.linear("f_a_proj", self.x))
        return kda.decay(a, self.w["A_log"].reshape(-1), self.w["dt_bias"], self.spec)

    def convolved(self, cuts: list[int]) -> tuple[F32, F32]:
        u = np.concatenate([self.linear(f"{c}_proj", self.x) for c in "qkv"], axis=1)
        w = np.concatenate([self.w[f"{c}_conv1d.weight"][:, 0] for c in "qkv"])
        past, parts = np.zeros((w.shape[1] - 1, u.shape[1]), np.float32), []
        for part in np.split(u, cuts):
            y, past = kda.conv(part, w, past)
            parts.append(y)
        return np.concatenate(parts), past

    def run(self, cuts: list[int]) -> tuple[F32, F32, F32]:
        """Core output, and both states, of the tokens cut at `cuts`."""
        y, past = self.convolved(cuts)
        qkv, g = np.split(y, 3, axis=1), self.decay()
        beta = self.linear("b_proj", self.x)
        heads, size = self.spec.heads, self.spec.head_size
        state, cores = np.zeros((heads, size, size), np.float32), []
        for rows in np.split(np.arange(len(y)), cuts):
            q, k, v, decays = (self.heads(x[rows]) for x in (*qkv, g))
            core, state = kda.delta((q, k, v), decays, beta[rows], state)
            cores.append(core)
        return np.concatenate(cores), past, state


@pytest.mark.parametrize(("folder", "prefix", "layer", "bound", "eps"), RECORDED)
@pytest.mark.parametrize("cuts", [[], [6, 14], [*range(1, 27)], [1]], ids=str)
def test_equals_the_recorded_layer(
    folder: str, prefix: str, layer: int, bound: float, eps: float, cuts: list[int]
) -> None:
    kept = Layer(folder, prefix, layer, bound, eps)
    golden = kept.golden
    g = kept.heads(kept.decay())
    assert (g <= 0).all()
    np.testing.assert_allclose(g, golden[f"p0_kda_g_{layer}"], rtol=1e-5, atol=1e-6)
    core, past, state = kept.run(cuts)
    np.testing.assert_allclose(core, golden[f"p0_kda_core_{layer}"], atol=3e-6)
    conv_state = golden[f"p0_state_conv_state_{layer}"]  # one input more than is needed
    np.testing.assert_allclose(past.T, conv_state[:, 1:], atol=1e-5)
    np.testing.assert_allclose(state, golden[f"p0_state_recurrent_state_{layer}"], atol=3e-6)
    gate = kept.heads(kept.linear("g_b_proj", kept.linear("g_a_proj", kept.x)))
    normed = kda.gated_norm(core, gate, kept.w["o_norm.weight"], eps)
    out = kept.linear("o_proj", normed.reshape(len(core), -1))
    np.testing.assert_allclose(out, golden[f"p0_attn_{layer}"], atol=1e-5)


Inputs = tuple[tuple[F32, F32, F32], F32, F32, F32]


def random_inputs(seed: int, count: int, *, heads: int, size: int, strongest: float) -> Inputs:
    """Decays of every strength, from none to e^strongest a step."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((count, heads, size), np.float32) for _ in range(3))
    g = -np.exp(rng.uniform(-12, np.log(strongest), (count, heads, size)))
    beta = rng.uniform(0, 1, (count, heads)).astype(np.float32)
    state = rng.standard_normal((heads, size, size), np.float32)
    qkv = kda.l2_norm(q) * np.float32(size**-0.5), kda.l2_norm(k), v
    return qkv, g.astype(np.float32), beta, state


def truth(inputs: Inputs) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The recurrence in f64, from its formula."""
    (q, k, v), g, beta, start = inputs
    out, state = np.zeros(q.shape), start.astype(np.float64)
    for t, h in np.ndindex(q.shape[:2]):
        m = np.exp(g[t, h].astype(np.float64))[:, None] * state[h]
        m = m + np.outer(k[t, h], beta[t, h] * (v[t, h] - m.T @ k[t, h]))
        state[h], out[t, h] = m, m.T @ q[t, h]
    return out, state


@pytest.mark.parametrize("strongest", [0.01, 5.0, 3000.0])
@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 63, 64, 65, 200])
def test_both_forms_equal_the_formula(count: int, strongest: float) -> None:
    inputs = random_inputs(count, count, heads=3, size=10, strongest=strongest)
    out, state = truth(inputs)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for rule in (kda.recurrent, kda.chunked):
            found, after = rule(*inputs)
            np.testing.assert_allclose(found, out, atol=5e-6)
            np.testing.assert_allclose(after, state, atol=2e-5)


@pytest.mark.parametrize("chunk", [1, 3, 20, 64, 128])
def test_the_size_of_a_chunk_changes_rounding_only(chunk: int) -> None:
    inputs = random_inputs(1, 130, heads=2, size=8, strongest=2.0)
    out, state = truth(inputs)
    found, after = kda.chunked(*inputs, chunk=chunk)
    np.testing.assert_allclose(found, out, atol=5e-6)
    np.testing.assert_allclose(after, state, atol=2e-5)


def test_a_weak_decay_after_a_very_strong_one_keeps_its_precision() -> None:
    """In f32 sums the strong decay would swallow the weak ones."""
    qkv, g, beta, state = random_inputs(2, 64, heads=2, size=8, strongest=1.0)
    g[:], g[3] = -0.3, -1e5
    out, after = truth((qkv, g, beta, state))
    found, chunked_state = kda.chunked(qkv, g, beta, state)
    np.testing.assert_allclose(found, out, atol=2e-6)
    np.testing.assert_allclose(chunked_state, after, atol=2e-6)


def test_the_state_given_is_not_written() -> None:
    inputs = random_inputs(3, 20, heads=2, size=8, strongest=2.0)
    for rule in (kda.recurrent, kda.chunked):
        before = inputs[3].copy()
        rule(*inputs)
        np.testing.assert_array_equal(inputs[3], before)


def test_conv_by_its_formula() -> None:
    x = np.array([[1, 10], [2, 20], [3, 30]], np.float32)
    w = np.array([[0.5, 0.25, 1], [0.1, 0, -1]], np.float32)
    y, past = kda.conv(x, w, np.array([[7, 70], [8, 80]], np.float32))
    before = np.array([[6.5, -3], [6.25, -12], [4, -29]])
    np.testing.assert_allclose(y, before / (1 + np.exp(-before)), rtol=1e-6)
    np.testing.assert_array_equal(past, x[1:])
    _, past = kda.conv(x[:1], w, past)
    np.testing.assert_array_equal(past, x[[2, 0]])


@pytest.mark.parametrize("bound", [0.0, -5.0])
def test_decay_at_extremes(bound: float) -> None:
    a = np.array([[-1e4, -30.0, 0.0, 19.9, 20.1, 1e4]], np.float32)
    spec = DecaySpec(2, 3, bound)
    a_log, bias = np.array([0.0, 1.0], np.float32), np.zeros(6, np.float32)
    rate = np.repeat(np.exp(a_log.astype(np.float64)), 3)
    wide = a[0].astype(np.float64)
    with np.errstate(over="ignore"):
        sigmoid = 1 / (1 + np.exp(-rate * wide))
    expected = bound * sigmoid if bound else -rate * np.logaddexp(0, wide)
    np.testing.assert_allclose(kda.decay(a, a_log, bias, spec)[0], expected, rtol=1e-6)
