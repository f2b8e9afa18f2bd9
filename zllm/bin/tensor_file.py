"""zllm inspect --tensor: one tensor decoded to f32, under its name in the file or its canonical."""

from __future__ import annotations

from contextlib import closing
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zllm.errors import LoadError, ZllmError
from zllm.quant.weights import decode_all
from zllm.weight.checkpoint import open_checkpoint
from zllm.weight.container import Container, open_container
from zllm.weight.linear_weight import LinearWeight, format_of

Json = dict[str, Any]


def describe_tensor(path: Path, name: str, out: Path | None) -> Json:
    """Decode a tensor, write it to `out` as .npy, and say what it is.

    LoadError if there is no such tensor; ZllmError if `out` cannot be written.
    """
    with closing(open_container(path)) as container:
        if container.problem is not None:
            raise container.problem
        weight = _in_container(container, name)
        if weight is not None:
            return _decoded(name, weight, out)
        known = [*container.weights, *container.tensors]
        with closing(_open_model(path, name, known)) as checkpoint:
            weight = checkpoint.tensors.get(name)
            if weight is None:
                raise _unknown(path, name, [*known, *checkpoint.tensors])
            return _decoded(name, weight, out)


def tensor_line(found: Json) -> str:
    """What `describe_tensor` found, as one line."""
    shape = " × ".join(map(str, found["shape"])) or "scalar"
    odd = f", {found['not_finite']} not finite" if found["not_finite"] else ""
    written = f", written to {found['out']}" if found["out"] else ""
    return (
        f"{found['name']}: {found['format']} {shape}, {found['min']:g} to {found['max']:g},"
        f" mean {found['mean']:g}{odd}{written}"
    )


def _in_container(container: Container, name: str) -> LinearWeight | None:
    """By the file's name, with or without `.weight`; parts of quantised weights by theirs."""
    for spelling in (name, f"{name}.weight"):
        weight = container.weights.get(spelling) or container.tensors.get(spelling)
        if weight is not None:
            return weight
    return None


def _open_model(path: Path, name: str, known: list[str]) -> Any:
    try:
        return open_checkpoint(path)
    except LoadError:
        raise _unknown(path, name, known) from None


def _unknown(path: Path, name: str, known: list[str]) -> LoadError:
    near = get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "--tensors lists them"
    return LoadError(f"{path}: no tensor {name!r}; {hint}")


def _decoded(name: str, weight: LinearWeight, out: Path | None) -> Json:
    try:
        values = decode_all(weight)
    except ZllmError:
        raise
    except ValueError as error:
        raise LoadError(f"tensor {name!r}: {error}") from None
    if out is not None:
        _save(out, values)
    finite = values[np.isfinite(values)]
    return {
        "name": name,
        "format": format_of(weight),
        "shape": list(weight.shape),
        "bytes": weight.size_bytes,
        "min": float(finite.min()) if finite.size else 0.0,
        "max": float(finite.max()) if finite.size else 0.0,
        "mean": float(finite.mean(dtype=np.float64)) if finite.size else 0.0,
        "not_finite": values.size - finite.size,
        "out": None if out is None else str(out),
    }


def _save(out: Path, values: NDArray[np.float32]) -> None:
    try:
        with out.open("wb") as file:
            np.save(file, values)
    except OSError as error:
        raise ZllmError(f"{out}: cannot be written: {error.strerror or error}") from error
