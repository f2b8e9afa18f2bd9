"""A GGUF file of SmolLM2-135M's shape with seeded random weights, for a machine without the real.

Formats and sizes are those of the real file, so it runs as fast. Without a tokenizer it takes token
ids only.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.helpers.files import GgufTensor, write_gguf

WIDTH, FFN_WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_SIZE, VOCABULARY = 576, 1536, 30, 9, 3, 64, 49152
Q4_STD = 4.61  # of the codes 0..15, drawn evenly
Q8_STD = 73.9  # of the codes -128..127


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, metavar="OUT.gguf")
    parser.add_argument("--layers", type=int, default=LAYERS, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    args = parser.parse_args()
    write_random_model(args.out, layers=args.layers, seed=args.seed)
    print(f"wrote {args.out}, {args.out.stat().st_size / 2**20:.1f} MiB")


def write_random_model(
    path: Path, *, layers: int = LAYERS, vocabulary: int = VOCABULARY, seed: int = 0
) -> Path:
    """Write the file. Products keep the size of their input, so that no activation overflows."""
    random = np.random.default_rng(seed)
    shapes = {
        "attn_q": (HEADS * HEAD_SIZE, WIDTH),
        "attn_k": (KV_HEADS * HEAD_SIZE, WIDTH),
        "attn_v": (KV_HEADS * HEAD_SIZE, WIDTH),
        "attn_output": (WIDTH, HEADS * HEAD_SIZE),
        "ffn_gate": (FFN_WIDTH, WIDTH),
        "ffn_up": (FFN_WIDTH, WIDTH),
        "ffn_down": (WIDTH, FFN_WIDTH),
    }
    tensors = {"token_embd.weight": _q8_0(random, vocabulary, WIDTH)}
    for layer in range(layers):
        for name, (rows, columns) in shapes.items():
            tensors[f"blk.{layer}.{name}.weight"] = _q4_1(random, rows, columns)
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{layer}.{name}.weight"] = _norm(random)
    tensors["output_norm.weight"] = _norm(random)
    return write_gguf(path, _metadata(layers, vocabulary), tensors)


def _metadata(layers: int, vocabulary: int) -> dict[str, Any]:
    return {
        "general.architecture": "llama",
        "general.name": "random weights in the shape of SmolLM2-135M",
        "llama.vocab_size": vocabulary,
        "llama.context_length": 8192,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": FFN_WIDTH,
        "llama.block_count": layers,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": HEAD_SIZE,
        "llama.rope.freq_base": 100000.0,
    }


def _norm(random: np.random.Generator) -> GgufTensor:
    values = random.uniform(0.5, 1.5, WIDTH).astype(np.float32)
    return "f32", values.shape, values.tobytes()


def _q4_1(random: np.random.Generator, rows: int, columns: int) -> GgufTensor:
    """Blocks of scale, minimum (f16) and 32 codes of 4 bits: ggml-common.h, block_q4_1."""
    blocks = np.zeros((rows * columns // 32, 20), np.uint8)
    scale = _scales(random, len(blocks), columns, Q4_STD)
    blocks[:, 0:2] = scale.view(np.uint8).reshape(-1, 2)
    blocks[:, 2:4] = (scale * np.float16(-7.5)).view(np.uint8).reshape(-1, 2)
    blocks[:, 4:] = random.integers(256, size=(len(blocks), 16), dtype=np.uint8)
    return "q4_1", (rows, columns), blocks.tobytes()


def _q8_0(random: np.random.Generator, rows: int, columns: int) -> GgufTensor:
    """Blocks of scale (f16) and 32 codes of 8 bits: ggml-common.h, block_q8_0."""
    blocks = np.zeros((rows * columns // 32, 34), np.uint8)
    scale = _scales(random, len(blocks), columns, Q8_STD)
    blocks[:, 0:2] = scale.view(np.uint8).reshape(-1, 2)
    blocks[:, 2:] = random.integers(256, size=(len(blocks), 32), dtype=np.uint8)
    return "q8_0", (rows, columns), blocks.tobytes()


def _scales(
    random: np.random.Generator, blocks: int, columns: int, code_std: float
) -> NDArray[np.float16]:
    """Scales that give weights a standard deviation near 1/sqrt(columns)."""
    spread = random.uniform(0.8, 1.2, blocks)
    scales: NDArray[np.float16] = (spread / (code_std * columns**0.5)).astype(np.float16)
    return scales


if __name__ == "__main__":
    main()
