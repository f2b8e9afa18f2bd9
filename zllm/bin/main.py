"""The `zllm` command: finds the sub-command, parses its flags, reports its errors."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

from zllm.errors import Notice, ZllmError

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE


@dataclass(frozen=True, slots=True)
class Command:
    """A sub-command: a module with `add_arguments(parser)` and `run(args) -> int`."""

    module: str
    help: str


@dataclass(frozen=True, slots=True)
class Group:
    """Commands under a common name: `zllm NAME COMMAND`."""

    commands: dict[str, Command | Group]
    help: str


# Modules are named, not imported: a command loads only what it uses.
COMMANDS: dict[str, Command | Group] = {
    "chat": Command("zllm.bin.chat", "talk with a model in the terminal"),
    "pull": Command("zllm.bin.pull", "fetch a model into the cache"),
    "inspect": Command("zllm.bin.inspect", "show what a model file or folder holds"),
    "tokenize": Command("zllm.bin.tokenize", "turn text into a model's token ids"),
    "logits": Command("zllm.bin.logits", "write the logits of given tokens to a file"),
    "doctor": Command("zllm.bin.doctor", "check what this machine offers and what is missing"),
    "bench": Command("zllm.bin.bench", "measure prefill and decode on this machine"),
    "web": Group(
        {
            "build": Command("zllm.bin.web_build", "write the browser page as a static site"),
            "serve": Command("zllm.bin.web_serve", "serve the page and the pulled models here"),
        },
        "zLLM in a browser tab",
    ),
    "tools": Group(
        {"tiny": Command("zllm.bin.tiny", "write a seeded tiny checkpoint of an architecture")},
        "make and check model files",
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Run one command line; returns the exit code. Unexpected errors keep their traceback."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", Notice)
            warnings.showwarning = partial(_show_warning, warnings.showwarning)
            code = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()  # here, so that a closed pipe is met inside the try
        return code
    except ZllmError as error:
        print(f"zllm: error: {error}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes stdout once more at exit; let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE


def _show_warning(others: Any, message: Any, category: Any, *where: Any, **more: Any) -> None:
    """A notice is one line, without the place in the source that other warnings show."""
    if issubclass(category, Notice):
        print(f"zllm: {message}", file=sys.stderr)
    else:
        others(message, category, *where, **more)


def _run(argv: list[str]) -> int:
    prog, commands = "zllm", COMMANDS
    while argv and argv[0] in commands:
        name, *argv = argv
        prog, command = f"{prog} {name}", commands[name]
        if isinstance(command, Command):
            return _run_command(prog, command, argv)
        commands = command.commands
    return _explain(prog, commands, argv)


def _run_command(prog: str, command: Command, argv: list[str]) -> int:
    module: Any = importlib.import_module(command.module)
    from zllm.bin import config

    parser = argparse.ArgumentParser(
        prog=prog, description=command.help.capitalize() + ".", allow_abbrev=False
    )
    module.add_arguments(parser)
    code: int = module.run(config.parse(parser, argv))
    return code


def _explain(prog: str, commands: dict[str, Command | Group], argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="An LLM inference engine." if commands is COMMANDS else None,
        epilog=f"`{prog} COMMAND --help` explains a command.",
        allow_abbrev=False,
    )
    if commands is COMMANDS:
        parser.add_argument("--version", action="store_true", help="print the version and stop")
    listed = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, command in commands.items():
        listed.add_parser(name, help=command.help)
    args = parser.parse_args(argv)
    if getattr(args, "version", False):
        print(f"zllm {_version()}")
        return 0
    parser.print_help(sys.stderr)
    return EXIT_USAGE


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("zllm")
    except metadata.PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
