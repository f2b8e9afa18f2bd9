"""Seeded tiny checkpoints of every architecture, in Hugging Face layout.

Which tensors one needs is not written here: the architecture's weight module says it, one missing
tensor at a time.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import zlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zllm.errors import ZllmError
from zllm.weight.byte_source import RefusedBytes
from zllm.weight.checkpoint import architectures
from zllm.weight.json_file import read_object
from zllm.weight.linear_weight import F32
from zllm.weight.names import MissingTensor
from zllm.weight.safetensors_writer import write_safetensors

Json = dict[str, Any]
Array = NDArray[np.float32] | NDArray[np.int64]

EXPERTS_OF_TOKENS = ".tid2eid"  # a table of ids, not of numbers to multiply with

# Of vectors; matrices are spread so that each product keeps the size of its input.
VECTOR_SPREAD = 0.1


@dataclass(frozen=True, slots=True)
class TinyModel:
    """config.json of an architecture, small; the file's name is the architecture's."""

    name: str
    config: Json

    @property
    def module(self) -> str | None:
        """The name of its modules of zllm.weight and zllm.runtime; None if they are not there."""
        name = architectures().get(str(self.config.get("model_type")))
        if name is None or importlib.util.find_spec(f"zllm.runtime.{name}") is None:
            return None
        return name


def tiny_models() -> dict[str, TinyModel]:
    """Every architecture that has a tiny config and runs here, by name."""
    found: dict[str, TinyModel] = {}
    folder = resources.files("zllm.bin").joinpath("tiny_configs")
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        name = file.name.removesuffix(".json")
        model = TinyModel(name, json.loads(file.read_text(encoding="utf-8")))
        if model.module is not None:
            found[name] = model
    return found


def tiny_model(name: str) -> TinyModel:
    """By its name, or of a config.json at that path. ZllmError names what there is."""
    if name.endswith(".json"):
        config = read_object(Path(name))
        model = TinyModel(Path(name).stem, config)
        if model.module is None:
            known = ", ".join(architectures())
            raise ZllmError(f"{name}: model_type {config.get('model_type')!r}: use one of {known}")
        return model
    models = tiny_models()
    if name not in models:
        raise ZllmError(
            f"unknown architecture {name!r}: use one of {', '.join(models)}, or a config.json"
        )
    return models[name]


def write_checkpoint(model: TinyModel, folder: Path, seed: int) -> int:
    """config.json, generation_config.json and float32 model.safetensors; returns the parameters.

    `folder` is made; ZllmError if it cannot be written. The same seed gives the same bytes.
    """
    shapes = tensor_shapes(model)
    tensors = {name: tensor_values(name, shape, model, seed) for name, shape in shapes.items()}
    config = {**model.config, **model.config.get("text_config", {})}
    stops = {key: config.get(key) for key in ("bos_token_id", "eos_token_id")}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in (("config", model.config), ("generation_config", stops)):
            text = json.dumps(content, indent=2) + "\n"
            (folder / f"{name}.json").write_text(text, encoding="utf-8")
        write_safetensors(folder / "model.safetensors", tensors)
    except OSError as error:
        raise ZllmError(f"--out: cannot write {folder}: {error.strerror or error}") from None
    return sum(math.prod(shape) for shape in shapes.values())


def tensor_shapes(model: TinyModel) -> dict[str, tuple[int, ...]]:
    """The tensors that a checkpoint of this config holds, by their names in the file.

    ZllmError: the architecture refuses the config.
    """
    module: Any = importlib.import_module(f"zllm.weight.{model.module}")
    tensors: dict[str, F32] = {}
    while True:
        try:
            module.from_hf(model.config, tensors)
        except MissingTensor as missing:
            assert missing.expected.stored_name not in tensors, missing.expected
            for want in (missing.expected, *missing.following):
                size_bytes = 4 * math.prod(want.shape)
                unread = RefusedBytes(size_bytes, f"tensor {want.stored_name!r} is not written yet")
                tensors[want.stored_name] = F32(want.shape, unread)
        except ValueError as error:
            raise ZllmError(f"config of {model.name}: {error}") from None
        else:
            return {name: weight.shape for name, weight in tensors.items()}


def tensor_values(name: str, shape: tuple[int, ...], model: TinyModel, seed: int) -> Array:
    """Seeded by its name too: what multiplies keeps the size of its input."""
    # A seed for each name: a tensor more or less leaves the others as they are.
    random = np.random.default_rng([seed, zlib.crc32(name.encode())])
    if name.endswith(EXPERTS_OF_TOKENS):
        order = random.random((shape[0], model.config["n_routed_experts"])).argsort(axis=1)
        return order[:, : shape[1]].astype(np.int64)
    values = random.standard_normal(shape, np.float32)
    if len(shape) > 1:
        return values * np.float32(shape[-1] ** -0.5)
    centre = 1 if "norm" in name else 0
    return np.float32(centre) + np.float32(VECTOR_SPREAD) * values
