"""zllm.bin.main: finding a command, exit codes, and what an error looks like."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tests.helpers.cpu_time import run_timed
from zllm.bin import main
from zllm.errors import ZllmError

Run = Callable[[argparse.Namespace], int]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], None]:
    """Registers a command `probe` with a flag --number and the given run function."""

    def register(run: Run) -> None:
        def add_arguments(parser: argparse.ArgumentParser) -> None:
            parser.add_argument("--number", type=int, default=0)

        module = SimpleNamespace(add_arguments=add_arguments, run=run)
        monkeypatch.setitem(sys.modules, "zllm_test_probe", module)
        monkeypatch.setitem(main.COMMANDS, "probe", main.Command("zllm_test_probe", "probe"))

    return register


def raising(error: BaseException) -> Run:
    def run(args: argparse.Namespace) -> int:
        raise error

    return run


def test_command_gets_its_flags_and_gives_the_exit_code(command: Callable[[Run], None]) -> None:
    command(lambda args: args.number)
    assert main.main(["probe", "--number", "7"]) == 7


def test_zllm_error_is_one_line(
    command: Callable[[Run], None], capsys: pytest.CaptureFixture[str]
) -> None:
    command(raising(ZllmError("no such file")))
    assert main.main(["probe"]) == 1
    assert capsys.readouterr() == ("", "zllm: error: no such file\n")


def test_interrupt_exits_130(command: Callable[[Run], None]) -> None:
    command(raising(KeyboardInterrupt()))
    assert main.main(["probe"]) == 130


def test_unexpected_error_keeps_its_traceback(command: Callable[[Run], None]) -> None:
    command(raising(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        main.main(["probe"])


def test_closed_pipe_is_quiet() -> None:
    code = (
        "import sys; from zllm.bin import main, pull\n"
        "pull._print_list = lambda as_json: [print('x' * 100) for _ in range(10000)]\n"
        "sys.exit(main.main(['pull', '--list']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 141


def test_unknown_command_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main.main(["chatt"])
    assert stop.value.code == 2
    assert "chatt" in (err := capsys.readouterr().err)
    assert "doctor" in err


def test_no_command_prints_help_and_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([]) == 2
    assert "usage: zllm" in capsys.readouterr().err


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main.main(["--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert all(command.help in out for command in main.COMMANDS.values())


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("zllm 0.")


def test_help_is_fast_and_loads_no_array_library() -> None:
    code = (
        "import sys; from zllm.bin import main\n"
        "try: main.main(['--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit('numpy' in sys.modules or 'wgpu' in sys.modules)"
    )
    assert min(run_timed([sys.executable, "-c", code])[1] for _ in range(5)) < 0.3


@pytest.mark.parametrize("name", ["pull", "doctor"])
def test_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main.main([name, "--help"])
    assert stop.value.code == 0
    assert "--config" in capsys.readouterr().out
