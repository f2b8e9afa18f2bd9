"""Surveys of models: layers from their operations, bytes from shapes, and no weight is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from zllm.backend.contract import Op, Value
from zllm.bin.tiny_checkpoint import tiny_models, write_checkpoint
from zllm.embedded import Engine
from zllm.runtime.footprint import F32_BYTES, cache_kind, footprint, live_bytes
from zllm.runtime.survey import Survey, _by_layer, survey
from zllm.weight.byte_source import RefusedBytes
from zllm.weight.checkpoint import Checkpoint, open_checkpoint
from zllm.weight.linear_weight import F32

ARCHITECTURES = sorted(tiny_models())


def tiny(arch: str, folder: Path) -> Path:
    write_checkpoint(tiny_models()[arch], folder, 0)
    return folder


def survey_of(checkpoint: Checkpoint) -> Survey:
    return survey(checkpoint.architecture, checkpoint.config, checkpoint.tensors)


def kinds(found: Survey) -> list[list[str]]:
    return [[part.kind for part in layer.parts] for layer in found.layers]


def test_llama(data_dir: Path) -> None:
    checkpoint = open_checkpoint(data_dir / "golden" / "llama")
    unread = {
        name: F32(weight.shape, RefusedBytes(weight.size_bytes, "a survey reads nothing"))
        for name, weight in checkpoint.tensors.items()
    }
    found = survey("llama", checkpoint.config, unread)
    checkpoint.close()
    assert [layer.index for layer in found.layers] == [0, 1, 2]
    assert kinds(found) == [["gqa", "ffn"]] * 3
    gqa, ffn = found.layers[1].parts
    assert dict(gqa.facts) == {"heads": 6, "kv_heads": 2, "head_size": 8}
    assert dict(ffn.facts) == {"width": 96, "activation": "silu"}
    assert found.layers[1].cache_bytes_per_token == 2 * 2 * 8 * 4
    assert found.layers[1].state_bytes == 0
    width, ffn_width, kv = 48, 96, 16
    elements = 2 * width + 2 * width * (width + kv) + 3 * width * ffn_width
    assert found.layers[1].weights_bytes == 4 * elements


def test_a_model_of_many_kinds(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny("glm5_next", tmp_path))
    found = survey_of(checkpoint)
    checkpoint.close()
    linear = ["hyper", "conv", "decay", "kda", "hyper"]
    chooses, follows = ["hyper", "indexer", "mla", "hyper"], ["hyper", "mla", "hyper"]
    dense, sparse = ["ffn"], ["experts", "shared"]
    mixers = [linear, linear, chooses, follows, linear, chooses]
    forwards = [dense, sparse, sparse, sparse, dense, sparse]
    for layer, mixer, forward in zip(kinds(found), mixers, forwards, strict=True):
        assert sorted(layer) == sorted(mixer + forward)
    facts = [{part.kind: dict(part.facts) for part in layer.parts} for layer in found.layers]
    assert facts[2]["indexer"] == {"heads": 8, "size": 16, "top_k": 16, "pool": 4, "tail": True}
    assert [facts[i]["mla"]["chosen"] for i in (2, 3, 5)] == ["here", "shared", "here"]
    assert facts[1]["experts"]["top_k"] == 2 and facts[1]["experts"]["experts"] == 6
    assert facts[0]["decay"] == {"lower_bound": -5.0}
    # Latent, and index keys with their gates and pools; three convolutions of 3 inputs, 4 matrices.
    assert found.layers[2].cache_bytes_per_token == 4 * (20 + 3 * 16)
    assert found.layers[3].cache_bytes_per_token == 4 * 20
    assert found.layers[0].state_bytes == 4 * (3 * 3 * 48 + 4 * 12 * 12)
    assert found.layers[0].cache_bytes_per_token == 0


def test_what_follows_the_layers_is_of_no_layer(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny("glm5_next", tmp_path))
    found = survey_of(checkpoint)
    checkpoint.close()
    ops = found.ops(1, 1)
    by_layer = _by_layer(ops)
    assert sum(map(len, by_layer.values())) == len(ops)
    assert by_layer[None][0].name == "embed"
    assert [op.name for op in by_layer[None]][-3:] == ["rms_norm", "linear", "sample"]
    assert "attend_latent" in [op.name for op in by_layer[5]]
    assert "sample" not in [op.name for op in by_layer[5]]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_layer_mixes_tokens_and_feeds_forward(arch: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny(arch, tmp_path))
    found = survey_of(checkpoint)
    checkpoint.close()
    config: Any = tiny_models()[arch].config
    config = config.get("text_config", config)
    assert [layer.index for layer in found.layers] == list(range(config["num_hidden_layers"]))
    for layer in found.layers:
        names = {part.kind for part in layer.parts}
        assert names & {"ffn", "experts"}, layer
        assert names - {"ffn", "experts", "shared", "hyper"}, layer
        assert layer.cache_bytes_per_token + layer.state_bytes > 0, layer


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_footprint_is_what_the_engine_takes(arch: str, tmp_path: Path) -> None:
    context, lanes = 64, 3
    folder = tiny(arch, tmp_path)
    with Engine(
        model=folder, backend="oracle", context=context, lanes=lanes, cache_tokens=lanes * context
    ) as engine:
        need = footprint(survey_of(engine.model.checkpoint), sequences=lanes, context=context)
        held = engine.backend.memory()
        assert held["weights"] == need.weights_f32 + need.tables
        assert held["caches"] == sum(need.caches.values())
        engine.logits([list(range(context))])
        # The oracle also keeps what operations need inside.
        assert engine.backend.memory()["activations"] >= need.activations / 2


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_packed_weights_are_what_the_checkpoint_stores(arch: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny(arch, tmp_path))
    need = footprint(survey_of(checkpoint), sequences=1, context=64)
    checkpoint.close()
    ids = [weight for weight in checkpoint.tensors.values() if weight.format == "i64"]
    wider = sum(weight.size_bytes // 2 for weight in ids)  # than f32, in which ids are resident
    assert need.weights_packed == need.weights_f32 + wider <= checkpoint.size_bytes


def test_sequences_share_weights_and_have_caches_of_their_own(data_dir: Path) -> None:
    checkpoint = open_checkpoint(data_dir / "golden" / "llama_rope3")
    found = survey_of(checkpoint)
    checkpoint.close()
    one, four = (footprint(found, sequences=count, context=160) for count in (1, 4))
    assert one.weights_packed == four.weights_packed < one.weights_f32 == four.weights_f32
    scratch = 16 * 512  # a page
    assert 4 * (one.caches["kv"] - scratch) == four.caches["kv"] - scratch == 4 * 160 * 512


def test_cache_kinds_are_spec_names(data_dir: Path) -> None:
    checkpoint = open_checkpoint(data_dir / "golden" / "llama")
    found = survey_of(checkpoint)
    checkpoint.close()
    assert {cache_kind(spec) for spec in found.inventory.caches.values()} == {"kv"}


def test_results_live_until_their_last_reader() -> None:
    a, b, c, d = (Value(i, (1, size)) for i, size in enumerate((100, 10, 1000, 1)))
    ops = [
        Op("embed", (), (a,)),
        Op("linear", (a,), (b,)),
        Op("linear", (b,), (c,)),
        Op("add", (b, c), (d,)),
    ]
    assert live_bytes(ops) == F32_BYTES * (10 + 1000 + 1)
    held = [*ops, Op("add", (a, d), (Value(4, (1, 1)),))]
    assert live_bytes(held) == F32_BYTES * (100 + 10 + 1000 + 1)
