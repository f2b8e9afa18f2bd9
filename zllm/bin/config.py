"""`--config FILE.yaml`: a command's flags from a file, checked as the flags themselves are."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from zllm.errors import ZllmError


class ConfigError(ZllmError):
    """A config file cannot be read, or says something that the command does not understand."""


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """Parse a command line whose `--config` file may give flags too; the command line wins.

    `parser` holds the command's own arguments and no `--config` yet. Raises ConfigError.
    """
    parser.add_argument(
        "--config", metavar="FILE.yaml", help="read flags from a file; flags given here win"
    )
    path = _config_path(argv)
    if path is None:
        return parser.parse_args(argv)
    values = _flag_values(parser, path)
    for action in values:
        action.required = False
    # None is no value a flag can be given, so what is still None afterwards was not given.
    given = argparse.Namespace(**{action.dest: None for action in values})
    args = parser.parse_args(argv, given)
    for action, value in values.items():
        if getattr(args, action.dest) is None:
            setattr(args, action.dest, value)
    return args


def _config_path(argv: list[str]) -> Path | None:
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config", type=Path)
    path: Path | None = finder.parse_known_args(argv)[0].config
    return path


def _flag_values(parser: argparse.ArgumentParser, path: Path) -> dict[argparse.Action, Any]:
    flags = _flags(parser)
    values: dict[argparse.Action, Any] = {}
    for key, value in _read(path).items():
        action = flags.get(str(key).replace("_", "-"))
        if action is None:
            raise ConfigError(f"{path}: unknown key {key!r}; expected one of {', '.join(flags)}")
        if action in values:
            raise ConfigError(f"{path}: {key!r} is given twice")
        if value is not None:
            values[action] = _checked(action, value, f"{path}: {key}")
    return values


def _flags(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    flags = {}
    for action in parser._actions:
        for option in action.option_strings:
            if option.startswith("--") and action.dest not in ("help", "config"):
                # --no-x is `x: false` in a file
                if isinstance(action, argparse.BooleanOptionalAction) and option[:5] == "--no-":
                    continue
                flags[option[2:].replace("_", "-")] = action
    return flags


def _read(path: Path) -> dict[Any, Any]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path} is not YAML: {reason}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds a {type(content).__name__}, expected `flag: value` lines")
    return content


def _checked(action: argparse.Action, value: Any, where: str) -> Any:
    if action.nargs == 0:
        return _switch(action, value, where)
    if action.nargs is None and not isinstance(action, argparse._AppendAction):
        return _scalar(action, value, where)
    items = value if isinstance(value, list) else [value]
    return [_scalar(action, item, where) for item in items]


def _switch(action: argparse.Action, value: Any, where: str) -> Any:
    if not isinstance(value, bool):
        raise ConfigError(f"{where} is {value!r}, expected true or false")
    if isinstance(action, argparse.BooleanOptionalAction):
        return value
    return action.const if value else action.default


def _scalar(action: argparse.Action, value: Any, where: str) -> Any:
    if isinstance(value, bool | list | dict) or value is None:
        raise ConfigError(
            f"{where} is {value!r}, expected one plain value (quote it if it is text)"
        )
    convert = action.type if callable(action.type) else str
    try:
        result = convert(str(value))
    except (ValueError, TypeError, argparse.ArgumentTypeError) as error:
        kind = getattr(convert, "__name__", "value")
        raise ConfigError(f"{where} is {value!r}, no valid {kind}") from error
    if action.choices is not None and result not in action.choices:
        known = ", ".join(map(str, action.choices))
        raise ConfigError(f"{where} is {value!r}, expected one of {known}")
    return result
