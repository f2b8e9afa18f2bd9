"""zllm.bin.config: flags from a YAML file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from zllm.bin import config


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(allow_abbrev=False)
    made.add_argument("prompt", nargs="?")
    made.add_argument("--model", required=True)
    made.add_argument("--max-tokens", type=int, default=16)
    made.add_argument("--temperature", type=float, default=1.0)
    made.add_argument("--backend", choices=["oracle", "webgpu"], default="oracle")
    made.add_argument("--stats", action="store_true")
    made.add_argument("--no-special", action="store_true")
    made.add_argument("--stream", action=argparse.BooleanOptionalAction, default=True)
    made.add_argument("--tokens", action="append")
    made.add_argument("--sizes", nargs="+", type=int)
    return made


def parsed(tmp_path: Path, text: str, *flags: str) -> dict[str, Any]:
    file = tmp_path / "run.yaml"
    file.write_text(text, encoding="utf-8")
    return vars(config.parse(parser(), [*flags, "--config", str(file)]))


def test_without_a_file_flags_are_parsed_as_ever() -> None:
    args = config.parse(parser(), ["--model", "m", "hello"])
    assert (args.model, args.prompt, args.max_tokens, args.config) == ("m", "hello", 16, None)


def test_file_gives_flags_of_every_kind(tmp_path: Path) -> None:
    text = """
        model: m
        max_tokens: 5
        temperature: 0
        backend: webgpu
        stats: true
        no-special: false
        stream: false
        tokens: ["1,2", "3"]
        sizes: [4, 5]
    """
    args = parsed(tmp_path, text)
    del args["config"]
    assert args == {
        "prompt": None,
        "model": "m",
        "max_tokens": 5,
        "temperature": 0.0,
        "backend": "webgpu",
        "stats": True,
        "no_special": False,
        "stream": False,
        "tokens": ["1,2", "3"],
        "sizes": [4, 5],
    }


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    text = "{model: m, max-tokens: 5, stream: false, tokens: ['1'], backend: webgpu}"
    flags = ["--max-tokens", "0", "--stream", "--tokens", "2", "--model", ""]
    args = parsed(tmp_path, text, *flags)
    assert (args["max_tokens"], args["stream"], args["tokens"]) == (0, True, ["2"])
    assert (args["model"], args["backend"]) == ("", "webgpu")


def test_missing_keys_keep_their_defaults(tmp_path: Path) -> None:
    args = parsed(tmp_path, "{model: m, max-tokens: null}")
    assert (args["max_tokens"], args["stream"], args["stats"]) == (16, True, False)


def test_empty_file_gives_nothing(tmp_path: Path) -> None:
    assert parsed(tmp_path, "# nothing\n", "--model", "m")["model"] == "m"


def test_required_flag_in_neither_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        parsed(tmp_path, "stats: true")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modle: m", "unknown key 'modle'; expected one of .*model"),
        ("help: true", "unknown key 'help'"),
        ("config: other.yaml", "unknown key 'config'"),
        ("prompt: hello", "unknown key 'prompt'"),
        ("max-tokens: many", "max-tokens is 'many', no valid int"),
        ("max-tokens: 1.5", "max-tokens is 1.5, no valid int"),
        ("max-tokens: true", "max-tokens is True, expected one plain value"),
        ("model: [a, b]", "model is .*, expected one plain value"),
        ("backend: cuda", "backend is 'cuda', expected one of oracle, webgpu"),
        ("stats: 1", "stats is 1, expected true or false"),
        ("stream: 'yes'", "stream is 'yes', expected true or false"),
        ("sizes: [1, x]", "sizes is 'x', no valid int"),
        ("{max-tokens: 1, max_tokens: 2}", "'max_tokens' is given twice"),
        ("- model", "holds a list"),
        ("model: [", "is not YAML"),
        ("model: !!python/object:os.system x", "is not YAML"),
    ],
)
def test_bad_file_gives_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(config.ConfigError, match=message) as error:
        parsed(tmp_path, text)
    assert "run.yaml" in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(config.ConfigError, match=r"cannot read .*none\.yaml: No such file"):
        config.parse(parser(), ["--config", str(tmp_path / "none.yaml")])


def test_binary_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(config.ConfigError, match="is not YAML"):
        config.parse(parser(), ["--config", str(file)])
