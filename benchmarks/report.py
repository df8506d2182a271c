"""Medians with their spread, ratios in one run, as a table, as JSON and as a picture."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.session import Measured


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float]) -> float:
    """Half of the distance between the quartiles, as a part of the median; of one run alone there is none."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / 2 / median(values)


def table(results: Mapping[str, Sequence[Measured]], *, beside: str) -> str:
    """One line a contender; ratios to the contender `beside`."""
    lines = [
        f"{'':<16}{'rows/s':>12}{'±':>6}{'CPU µs/row':>12}{'±':>6}{'rows/s ratio':>14}{'CPU ratio':>12}{'stolen':>8}"
    ]
    speed: Callable[[Measured], float] = lambda m: m.rows_per_s  # noqa: E731 - named for the lines below
    cost: Callable[[Measured], float] = lambda m: m.cpu_us_per_row  # noqa: E731
    for name, runs in results.items():
        speeds, costs = [speed(run) for run in runs], [cost(run) for run in runs]
        speed_ratios, cost_ratios = (ratios(results, name, beside=beside, of=of) for of in (speed, cost))
        lines.append(
            f"{name:<16}{median(speeds):>12,.0f}{spread(speeds):>6.0%}{median(costs):>12.2f}{spread(costs):>6.0%}"
            f"{median(speed_ratios):>14.2f}{median(cost_ratios):>12.2f}{median([run.stolen for run in runs]):>8.0%}"
        )
    return "\n".join(lines)


def ratios(
    results: Mapping[str, Sequence[Measured]], name: str, *, beside: str, of: Callable[[Measured], float]
) -> list[float]:
    """Of runs side by side: what slows the machine for a minute slows both."""
    return [of(a) / of(b) for a, b in zip(results[name], results[beside], strict=True)]


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, default=lambda each: asdict(each)) + "\n")


@dataclass(frozen=True)
class Difference:
    """What an epoch takes longer, and between which bounds that lies in nine of ten cases."""

    ms: float
    low_ms: float
    high_ms: float
    part: float
    """Of what it is compared with."""

    def __str__(self) -> str:
        return f"{self.ms:>6.0f} ms ({self.low_ms:.0f} to {self.high_ms:.0f}), {self.part:.1%}"


def epoch_difference(results: Mapping[str, Sequence[Measured]], name: str, *, over: str) -> Difference:
    """Of runs side by side, the medians of all epochs but the first of each, which starts the workers. The bounds: from rounds that
    are drawn again and again (bootstrap), because the machine's speed changes from round to round more than anything else."""
    rounds = list(zip(results[name], results[over], strict=True))

    def of(drawn: Sequence[tuple[Measured, Measured]]) -> float:
        own, others = zip(*drawn, strict=True)
        return _median_epoch_ms(own) - _median_epoch_ms(others)

    chance = random.Random(7)
    drawn = sorted(of(chance.choices(rounds, k=len(rounds))) for _ in range(2_000))
    return Difference(of(rounds), drawn[100], drawn[-100], of(rounds) / _median_epoch_ms(results[over]))


def _median_epoch_ms(runs: Sequence[Measured]) -> float:
    return median([each for run in runs for each in run.epoch_ms[1:]])


def plot(path: Path, panels: Mapping[str, Mapping[str, Sequence[Measured]]]) -> bool:
    """A picture of rows/s, with every run as a dot, and a panel for each title; False if there is no matplotlib."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        return False
    counts = [len(results) for results in panels.values()]
    figure, all_axes = plt.subplots(
        len(panels),
        figsize=(7, 0.8 * len(panels) + 0.6 * sum(counts)),
        height_ratios=counts,
        squeeze=False,
    )
    for axes, (title, results) in zip(all_axes[:, 0], panels.items(), strict=True):
        for at, runs in enumerate(results.values()):
            speeds = [run.rows_per_s / 1000 for run in runs]
            axes.barh(at, median(speeds), height=0.55, color="#4477aa", alpha=0.6)
            axes.plot(speeds, [at] * len(speeds), "o", color="#223344", markersize=4)
        axes.set_yticks(range(len(results)), list(results))
        axes.invert_yaxis()
        axes.set_title(title, fontsize=10)
    all_axes[-1, 0].set_xlabel("thousand rows a second (bar: median, dots: runs)")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return True


def curves(
    path: Path, lines: Mapping[str, Mapping[int, Sequence[float]]], title: str, across: str, upwards: str
) -> bool:
    """A picture of what grows with what, both in powers of ten: a line of medians, with every run as a dot; False without
    matplotlib."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        return False
    figure, axes = plt.subplots(figsize=(7, 4))
    for name, points in lines.items():
        (line,) = axes.plot(list(points), [median(each) for each in points.values()], label=name)
        for at, values in points.items():
            axes.plot([at] * len(values), values, "o", color=line.get_color(), markersize=4, alpha=0.6)
    axes.set(xscale="log", yscale="log", title=title, xlabel=across, ylabel=upwards)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return True
