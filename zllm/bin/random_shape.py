"""Models of a well-known shape with random weights: for a benchmark, without any file."""

from __future__ import annotations

import importlib
import json
import zlib
from dataclasses import dataclass
from importlib import resources
from typing import Any

from zllm.bin.random_weights import FORMATS, SHIFT_ROWS, tile, tile_rows
from zllm.bin.tiny_checkpoint import TinyModel, tensor_shapes, tensor_values
from zllm.errors import ZllmError
from zllm.model import Model
from zllm.quant import formats
from zllm.weight.byte_source import BytesSource, TensorBytes
from zllm.weight.checkpoint import Checkpoint, TokenizerFiles
from zllm.weight.generation import Generation
from zllm.weight.linear_weight import F32, OneTensor, RepeatedRows, stored

SEED = 0
# Smaller ones (routers of few experts, taps, gates per head) are stored as f32 in real files too.
LEAST_ROWS, LEAST_COLUMNS = 65, 32

Json = dict[str, Any]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RandomShape:
    """`config`: as a config.json would say it. Formats: of all matrices, of the token tables."""

    name: str
    config: Json
    format: str
    table_format: str


# Name -> formats, as the files that people run have them.
_FORMATS = {
    "llama-8b": ("f16", "f16"),
    "smollm2": ("q4_1", "q8_0"),
    "glm-5.3-flash": ("q8_0", "q8_0"),
}
SHAPES = tuple(_FORMATS)


def random_shape(name: str, *, format: str | None, layers: int | None) -> RandomShape:
    """`format` and `layers` in place of the shape's own. ZllmError says what is possible."""
    if name not in _FORMATS:
        raise ZllmError(f"--random-shape {name}: use one of {', '.join(SHAPES)}")
    if format is not None and format not in FORMATS:
        raise ZllmError(f"--format {format}: use one of {', '.join(FORMATS)}")
    file = resources.files("zllm.bin").joinpath("random_shapes", f"{name}.json")
    config = json.loads(file.read_text(encoding="utf-8"))
    if layers is not None:
        _keep_layers(config, layers)
    usual, table = _FORMATS[name]
    return RandomShape(name, config, format or usual, table if format is None else format)


def _keep_layers(config: Json, layers: int) -> None:
    """The first `layers` of the model."""
    inner = config.get("text_config", config)
    have = inner["num_hidden_layers"]
    if not 1 <= layers <= have:
        raise ZllmError(f"--layers must be from 1 to {have}, got {layers}")
    inner["num_hidden_layers"] = layers
    for key, value in inner.items():
        if isinstance(value, list) and len(value) == have:
            inner[key] = value[:layers]


def random_model(shape: RandomShape) -> Model:
    """It takes token ids only. ZllmError if the format does not fit the shape's rows."""
    spec = TinyModel(shape.name, shape.config)
    assert spec.module is not None, shape.name
    weights = _Weights(shape, spec)
    tensors = {name: weights.of(name, size) for name, size in tensor_shapes(spec).items()}
    module: Any = importlib.import_module(f"zllm.weight.{spec.module}")
    config, canonical = module.from_hf(shape.config, tensors)
    no_files = TokenizerFiles(None, None, None)
    checkpoint = Checkpoint(
        spec.module, config, canonical, shape.config, Generation(), no_files, sources=()
    )
    return Model(f"{shape.name}, random {shape.format} weights", checkpoint=checkpoint)


class _Weights:
    """Tensors by their names in a Hugging Face folder; those of one width share a tile."""

    def __init__(self, shape: RandomShape, spec: TinyModel) -> None:
        self._shape = shape
        self._spec = spec
        self._tiles: dict[tuple[str, int], bytes] = {}

    def of(self, name: str, shape: Shape) -> OneTensor:
        if len(shape) != 2 or shape[0] < LEAST_ROWS or shape[1] < LEAST_COLUMNS:
            data = tensor_values(name, shape, self._spec, SEED).tobytes()
            return F32(shape, TensorBytes(BytesSource(data, name), 0, len(data)))
        table = name.endswith(("embed_tokens.weight", "lm_head.weight"))
        format = self._shape.table_format if table else self._shape.format
        rows, columns = shape
        if columns % formats.lookup(format).block_elements:
            raise ZllmError(
                f"--format {format}: {name} has rows of {columns}, and {format} comes in blocks "
                f"of {formats.lookup(format).block_elements}"
            )
        row_bytes = formats.row_bytes(format, columns)
        shift = zlib.crc32(name.encode()) % (tile_rows(columns) // SHIFT_ROWS) * SHIFT_ROWS
        data = self._tile(format, columns)
        return stored(format, shape, RepeatedRows(data, shift * row_bytes, rows * row_bytes))

    def _tile(self, format: str, columns: int) -> bytes:
        key = (format, columns)
        if key not in self._tiles:
            self._tiles[key] = tile(format, columns, SEED)
        return self._tiles[key]
