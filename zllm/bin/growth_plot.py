"""The figures of `zllm bench --growth` as two log-log panels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zllm.bin.plot_file import write_figure


def save_plot(path: Path, report: dict[str, Any]) -> None:
    """Prefill and decode time of each operation by prompt length."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    panels = figure.subplots(1, 2)
    titles = {"prefill": "prefill: ms in all", "decode": "decode: ms a token"}
    for axes, (phase, title) in zip(panels, titles.items(), strict=True):
        for kind in report["kinds"]:
            for name, op in kind["ops"].items():
                found = op[f"{phase}_exponent"]
                growth = "" if found is None else f": T^{found:.2f}"
                axes.plot(
                    report["lengths"],
                    op[f"{phase}_ms"],
                    marker="o",
                    linestyle="--" if name == "select" else "-",
                    label=f"{kind['name']}, {name}{growth}",
                )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(report["lengths"], [f"{length:,}" for length in report["lengths"]])
        axes.set_xlabel("tokens T")
        axes.set_title(title)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    write_figure(figure, path)
