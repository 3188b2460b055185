"""Growth curves: a picture if matplotlib is there, lines of text in any case."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

BARS = "▁▂▃▄▅▆▇█"


def text_curves(title: str, curves: Mapping[str, Sequence[float]], *, unit: str) -> str:
    """One line per curve, drawn on one logarithmic scale, with where it starts and ends."""
    values = [value for curve in curves.values() for value in curve]
    if not values:
        return f"{title}: nothing to draw"
    low, high = math.log(min(values)), math.log(max(values))
    lines = [f"{title}  [{unit}, logarithmic]"]
    for name, curve in curves.items():
        bars = "".join(_bar(value, low, high) for value in curve)
        lines.append(f"  {name:<24}{bars}  {curve[0]:,.0f} -> {curve[-1]:,.0f}")
    return "\n".join(lines)


def _bar(value: float, low: float, high: float) -> str:
    share = (math.log(value) - low) / (high - low) if high > low else 0.0
    return BARS[min(len(BARS) - 1, int(share * len(BARS)))]


def picture(
    path: Path,
    *,
    supersteps: Mapping[str, tuple[int, Sequence[float]]],
    sizes: Mapping[str, Mapping[int, float]],
) -> bool:
    """Draw time per superstep along the run and bytes on disk by length; False if matplotlib is not installed.

    `supersteps` has each contender's run length and curve, `sizes` its bytes by run length.
    """
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = path.stem  # the same figures make the same file
    from matplotlib import pyplot

    figure, (time_axes, size_axes) = pyplot.subplots(1, 2, figsize=(12, 5))
    for name, (length, curve) in supersteps.items():
        time_axes.plot([length * (index + 0.5) / len(curve) for index in range(len(curve))], curve, label=name)
    for by_length in sizes.values():
        size_axes.plot(list(by_length), [size / 1e6 for size in by_length.values()], marker="o")
    time_axes.set(xlabel="superstep", ylabel="µs per superstep", yscale="log", title="+1 KB of chat per superstep")
    size_axes.set(xlabel="supersteps", ylabel="MB on disk", xscale="log", yscale="log", title="bytes on disk")
    for axes in (time_axes, size_axes):
        axes.grid(visible=True, alpha=0.3)
    figure.legend(*time_axes.get_legend_handles_labels(), loc="lower center", ncols=len(supersteps))
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(path, dpi=120, facecolor="white", metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
    return True
