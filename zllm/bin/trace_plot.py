"""The figures of `zllm bench --trace` as bars: where the time of a round goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zllm.bin.plot_file import write_figure

BARS = 14  # of each panel at most; the rest is one more
LEAST_SHARE = 0.004  # of a round's time

Json = dict[str, Any]


def save_plot(path: Path, report: Json) -> None:
    """Kernels by time, coloured by the share of the measured bandwidth that they reach."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16, 6.4), layout="constrained")
    panels = figure.subplots(1, 2)
    colours = ScalarMappable(Normalize(0, 1), colormaps["RdYlGn"])
    for axes, phase in zip(panels, ("prefill", "decode"), strict=True):
        _draw(axes, report[phase], colours)
    figure.colorbar(
        colours, ax=panels, label="share of the bandwidth of a copying kernel", fraction=0.03
    )
    bandwidth = report["copy_bytes_per_s"] / 1e9
    batch = f", {report['batch']} sequences" if report["batch"] > 1 else ""
    figure.suptitle(
        f"{report['model']}{batch} on {report['adapter']}; "
        f"bandwidth of a copying kernel {bandwidth:,.0f} GB/s"
    )
    write_figure(figure, path)


def _draw(axes: Any, part: Json, colours: Any) -> None:
    groups = _shortened(part["groups"])
    total = sum(group["ms"] for group in groups)
    longest = max(group["ms"] for group in groups)
    places = range(len(groups))
    axes.barh(
        places,
        [group["ms"] for group in groups],
        color=[colours.to_rgba(group["share"]) for group in groups],
        edgecolor="0.4",
        linewidth=0.5,
    )
    for place, group in zip(places, groups, strict=True):
        text = (
            f" {_ms(group['ms'])}, {100 * group['ms'] / total:.1f} %, {group['dispatches']:.0f} ×"
        )
        reached = f" {100 * group['share']:.0f} % of bandwidth"
        if group["tflop_s"] and part["what"].startswith("prefill"):
            reached += f", {_flop_s(group['tflop_s'])}"
        axes.text(group["ms"], place, f"{text}\n{reached}", va="center", fontsize="x-small")
    axes.set_yticks(places, [_label(group) for group in groups], fontsize="small")
    axes.invert_yaxis()
    axes.set_xlim(0, 1.5 * longest)
    axes.set_xlabel("milliseconds a round; beside: share of the round, number of kernels")
    axes.set_title(
        f"{part['what']} tokens: {_ms(total)} in {part['kernels']:.0f} kernels\n"
        f"({_ms(part['untraced_ms'])} untraced, host and all)",
        fontsize="medium",
    )
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)


def _ms(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def _flop_s(tera: float) -> str:
    return f"{tera:.3g} TFLOP/s" if tera >= 1 else f"{1000 * tera:.3g} GFLOP/s"


def _shortened(groups: list[Json]) -> list[Json]:
    """The dearest, and all others together."""
    total = sum(group["ms"] for group in groups)
    kept = [group for group in groups[:BARS] if group["ms"] >= LEAST_SHARE * total]
    rest = groups[len(kept) :]
    if not rest:
        return groups
    sums = {key: sum(group[key] for group in rest) for key in ("ms", "dispatches", "bytes")}
    share = sum(group["share"] * group["ms"] for group in rest) / sums["ms"] if sums["ms"] else 0.0
    about = {"op": f"{len(rest)} others", "weight": "", "kernel": "", "tflop_s": 0.0}
    return [*kept, {**about, "share": share, **sums}]


def _label(group: Json) -> str:
    named = f"{group['op']} {group['weight']}".strip()
    return f"{named}\n{group['kernel']}" if group["kernel"] else named
