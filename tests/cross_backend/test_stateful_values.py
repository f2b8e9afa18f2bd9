"""Inside a run of models with recurrent state or residual streams: what the reference recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers.golden import recorded
from tests.helpers.tiny_model import GOLDEN
from zllm.backend.contract import Op
from zllm.backend.oracle.backend import OracleBackend
from zllm.embedded import Engine

F32 = NDArray[np.float32]
Results = dict[str, list[list[F32]]]  # by op, in the order of the run

KDA = ["glm5_next", "glm5_next_b", "glm5_next_notail", "kimi_linear"]
STREAMS = ["glm5_next", "glm5_next_b", "glm5_next_notail"]
SPLITS = [None, [6, 8, *[1] * 13]]


def results(folder: str, split: list[int] | None) -> Results:
    """Every op's results over prompt 0, the rows of all rounds joined."""
    rounds: list[dict[str, list[list[F32]]]] = []

    def observe(op: Op, outs: list[F32]) -> None:
        if op.name == "embed":
            rounds.append(defaultdict(list))
        rounds[-1][op.name].append([out.copy() for out in outs])

    with Engine(model=GOLDEN / folder, backend="oracle") as engine:
        assert isinstance(engine.backend, OracleBackend)
        engine.backend.observer = observe
        engine.logits([recorded(folder)["p0_ids"].astype(int).tolist()], split)
    return {name: [*map(joined, *(r[name] for r in rounds))] for name in rounds[0]}


def joined(*parts: list[F32]) -> list[F32]:
    return [np.concatenate(outs) for outs in zip(*parts, strict=True)]


def recorded_layers(folder: str, key: str) -> Iterator[tuple[int, F32]]:
    """The recorded values `p0_<key>_<layer>`, flat per row, in the order of layers."""
    golden, prefix = recorded(folder), f"p0_{key}_"
    numbers = [name.removeprefix(prefix) for name in golden if name.startswith(prefix)]
    for layer in sorted(int(number) for number in numbers if number.isdigit()):
        yield layer, golden[f"{prefix}{layer}"].reshape(len(golden["p0_ids"]), -1)


@pytest.mark.parametrize("split", SPLITS, ids=["full", "split"])
@pytest.mark.parametrize("folder", KDA)
def test_decay_and_delta(folder: str, split: list[int] | None) -> None:
    run = results(folder, split)
    for op, key in (("decay", "kda_g"), ("delta", "kda_core")):
        wanted = [*recorded_layers(folder, key)]
        assert len(wanted) == len(run[op]) > 0
        for (layer, truth), (found,) in zip(wanted, run[op], strict=True):
            near = 1e-4 * np.abs(truth).max()
            np.testing.assert_allclose(found, truth, atol=near, err_msg=f"{key}, layer {layer}")


@pytest.mark.parametrize("split", SPLITS, ids=["full", "split"])
@pytest.mark.parametrize("folder", STREAMS)
def test_maps_of_hyper_connections(folder: str, split: list[int] | None) -> None:
    run, first = results(folder, split), first_row(folder)
    for site, splits in (("attn", run["hc_split"][::2]), ("ffn", run["hc_split"][1::2])):
        for part, key in enumerate(("in", "post", "comb")):
            wanted = [*recorded_layers(folder, f"{site}_hc_{key}")]
            assert len(wanted) == len(splits) > 0
            for (layer, truth), outs in zip(wanted, splits, strict=True):
                rows = slice(first if site == "ffn" and layer == len(wanted) - 1 else 0, None)
                near = 1e-4 * np.abs(truth).max()
                np.testing.assert_allclose(outs[part][rows], truth[rows], atol=near)


def first_row(folder: str) -> int:
    """From here on the last layer's attention has a meaning in the reference."""
    return 3 if folder == "glm5_next_notail" else 0


@pytest.mark.parametrize("split", SPLITS, ids=["full", "split"])
@pytest.mark.parametrize("folder", STREAMS)
def test_selections(folder: str, split: list[int] | None) -> None:
    wanted, run = [*recorded_layers(folder, "topk")], results(folder, split)["select"]
    assert len(wanted) == len(run) > 0
    for (_, truth), (found,) in zip(wanted, run, strict=True):
        for ours, theirs in zip(found.tolist(), truth.tolist(), strict=True):
            chosen = [position for position in ours if position >= 0]
            assert chosen == sorted(position for position in theirs if position >= 0)
            assert ours == chosen + [-1] * (len(ours) - len(chosen))


@pytest.mark.parametrize("folder", KDA)
def test_chosen_experts_and_their_weights(folder: str) -> None:
    run, first = results(folder, None)["route"], first_row(folder)
    ids, weights = ([*recorded_layers(folder, f"router_{part}")] for part in ("idx", "w"))
    assert len(ids) == len(run) > 0
    for (layer, chosen), (_, truth), outs in zip(ids, weights, run, strict=True):
        rows = slice(first if layer == ids[-1][0] else 0, None)
        np.testing.assert_array_equal(outs[0][rows], chosen[rows])
        np.testing.assert_allclose(outs[1][rows], truth[rows], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("folder", KDA)
def test_streams_after_each_layer(folder: str) -> None:
    run, first = results(folder, None), first_row(folder)
    ends = run["hc_join"][1::2] if "hc_join" in run else ffn_ends(run)
    wanted = [*recorded_layers(folder, "hs")]
    assert len(wanted) == len(ends) > 0
    for (layer, truth), (found,) in zip(wanted, ends, strict=True):
        rows = slice(first if layer == len(wanted) - 1 else 0, None)
        near = 1e-4 * np.abs(truth).max()
        np.testing.assert_allclose(found[rows], truth[rows], atol=near, err_msg=f"layer {layer}")


def ffn_ends(run: Results) -> list[list[F32]]:
    """What the layers' last products gave: inputs of the norms that open the next layer."""
    width = run["embed"][0][0].shape[1]
    products = [outs for outs in run["linear"] if len(outs) == 1 and outs[0].shape[1] == width]
    return products[1::2]  # the first of a layer's two ends its attention


def test_a_row_that_sees_nothing_gets_zeros_of_its_attention() -> None:
    """Without a tail the first rows see no complete pool."""
    run = results("glm5_next_notail", None)
    (chosen,), (attended,) = run["select"][0], run["attend_latent"][0]
    assert (chosen[:3] == -1).all() and (chosen[3:, 0] >= 0).all()
    assert not attended[:3].any() and np.abs(attended[3:]).max(axis=1).all()
