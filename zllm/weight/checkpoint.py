"""A model as it lies on disk: one call opens a GGUF file or a Hugging Face folder."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol, cast

from zllm import model_spec
from zllm.errors import LoadError
from zllm.weight import generation, json_file, shards
from zllm.weight.byte_source import ByteSource, FileSource
from zllm.weight.container import quantization_beside
from zllm.weight.generation import Generation
from zllm.weight.gguf import MAGIC
from zllm.weight.gguf_split import GgufModel, open_gguf_parts, open_gguf_path
from zllm.weight.linear_weight import LinearWeight
from zllm.weight.quantization import assemble
from zllm.weight.shards import TensorFiles

Tensors = Mapping[str, LinearWeight]


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The tokenizer's files of a Hugging Face folder, unread but for their JSON; None if absent."""

    tokenizer: dict[str, Any] | None
    config: dict[str, Any] | None
    chat_template: Any  # a text, or texts by name


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened model. Weights are read from `sources` when they are used."""

    architecture: str  # module of zllm.model_spec, zllm.weight and zllm.runtime
    config: Any  # that module's Config, e.g. LlamaConfig
    tensors: Tensors = field(repr=False)  # by canonical name
    metadata: dict[str, Any] = field(repr=False)  # GGUF's, or config.json
    generation: Generation
    tokenizer_files: TokenizerFiles | None = field(repr=False)  # None: see GGUF's metadata
    sources: tuple[ByteSource, ...] = field(repr=False)

    @property
    def size_bytes(self) -> int:
        """Bytes of all weights in use, as stored."""
        return sum(weight.size_bytes for weight in self.tensors.values())

    def close(self) -> None:
        for source in self.sources:
            source.close()


class WeightModule(Protocol):
    """What `zllm.weight.<architecture>` offers; a module may lack `from_gguf`.

    Both raise ValueError saying what does not fit.
    """

    def from_hf(self, config: Mapping[str, Any], tensors: Tensors, /) -> tuple[Any, Tensors]: ...

    def from_gguf(
        self, metadata: Mapping[str, Any], tensors: Tensors, /
    ) -> tuple[Any, Tensors]: ...


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a `.gguf` file, a Hugging Face folder, or a `.safetensors` file beside its config.json.

    LoadError, naming the file and the field or tensor, for anything that is not a usable model.
    """
    path = Path(path)
    if path.is_dir():
        return _open_folder(path, lambda: shards.open_folder(path))
    if path.suffix == ".safetensors":
        return _open_folder(path.parent, lambda: shards.open_files([path]))
    source = FileSource(path)
    if source.size_bytes == 0 or bytes(source.read(0, min(4, source.size_bytes))) != MAGIC:
        source.close()
        raise LoadError(
            f"{path}: {'empty' if source.size_bytes == 0 else 'not a model file'}; expected a GGUF"
            " file, a .safetensors file or a folder with config.json"
        )
    source.close()
    return _gguf_checkpoint(open_gguf_path(path))


def open_gguf_checkpoint(*sources: ByteSource) -> Checkpoint:
    """The model in a GGUF file, or in all parts of a split one in order, from anywhere.

    The sources are closed on an error.
    """
    with ExitStack() as opened:
        for source in sources:
            opened.callback(source.close)
        checkpoint = _gguf_checkpoint(open_gguf_parts(sources))
        opened.pop_all()
        return checkpoint


def _gguf_checkpoint(gguf: GgufModel) -> Checkpoint:
    metadata = gguf.metadata
    with _closed_on_error(gguf), _naming(gguf.sources[0].name):
        architecture, module = _find(metadata.get("general.architecture"), "general.architecture")
        if not hasattr(module, "from_gguf"):
            raise LoadError(
                f"general.architecture: GGUF files of {architecture} are not supported; use the"
                " model's Hugging Face folder"
            )
        config, tensors = module.from_gguf(metadata, gguf.tensors)
        says = generation.from_gguf(metadata)
    return Checkpoint(architecture, config, tensors, metadata, says, None, gguf.sources)


def _open_folder(folder: Path, open_tensors: Callable[[], TensorFiles]) -> Checkpoint:
    metadata = _read_config(folder)
    with _naming(str(folder / "config.json")):
        architecture, module = _find(metadata.get("model_type"), "model_type")
    quantization = quantization_beside(folder)
    generation_config = json_file.read_optional_object(folder / "generation_config.json")
    tokenizer_files = _read_tokenizer_files(folder)
    files = open_tensors()
    with _closed_on_error(files), _naming(str(folder)):
        says = generation.from_hf(metadata, generation_config)
        config, tensors = module.from_hf(metadata, assemble(files.tensors, quantization))
    sources = tuple(files.sources)
    return Checkpoint(architecture, config, tensors, metadata, says, tokenizer_files, sources)


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if path.exists():
        return json_file.read_object(path)
    found = ", ".join(sorted(file.name for file in folder.glob("*.gguf")))
    hint = f"; it holds {found}: name the file" if found else ""
    raise LoadError(f"{folder}: no config.json, so this is not a Hugging Face model folder{hint}")


def _read_tokenizer_files(folder: Path) -> TokenizerFiles:
    return TokenizerFiles(
        json_file.read_optional_object(folder / "tokenizer.json", json_file.MAX_TOKENIZER_BYTES),
        json_file.read_optional_object(folder / "tokenizer_config.json"),
        _read_chat_template(folder),
    )


def _read_chat_template(folder: Path) -> Any:
    """chat_template.jinja with any others by name; else what an older chat_template.json holds."""
    usual = json_file.read_optional_text(folder / "chat_template.jinja")
    others = {
        path.stem: json_file.read_optional_text(path)
        for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))
    }
    if others:
        return others if usual is None else {**others, "default": usual}
    older = json_file.read_optional_object(folder / "chat_template.json") or {}
    return older.get("chat_template") if usual is None else usual


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """ValueErrors become LoadErrors that start with the file's name."""
    try:
        yield
    except ValueError as error:
        text = str(error)
        raise LoadError(text if text.startswith(name) else f"{name}: {text}") from None


@contextmanager
def _closed_on_error(opened: GgufModel | TensorFiles) -> Iterator[None]:
    try:
        yield
    except BaseException:
        opened.close()
        raise


@cache
def architectures() -> Mapping[str, str]:
    """Model type -> module name, from the `MODEL_TYPES` of each module of zllm.model_spec."""
    found: dict[str, str] = {}
    for info in pkgutil.iter_modules(model_spec.__path__):
        module = importlib.import_module(f"{model_spec.__name__}.{info.name}")
        found |= dict.fromkeys(getattr(module, "MODEL_TYPES", ()), info.name)
    return found


def _find(model_type: Any, field_name: str) -> tuple[str, WeightModule]:
    known = architectures()
    if not isinstance(model_type, str) or model_type not in known:
        raise LoadError(
            f"{field_name}: got {model_type!r}, supported architectures: {', '.join(sorted(known))}"
        )
    name = known[model_type]
    return name, cast(WeightModule, importlib.import_module(f"zllm.weight.{name}"))
