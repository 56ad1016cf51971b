"""Speed and quality in one picture: models fine-tuned with growing sparsity, and pretrained models without training.

The fine-tuned models are runs of Table 2 and share its records; the pretrained models are those of ``pretrained``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from rsoftmax_lab.experiments import glue, pretrained
from rsoftmax_lab.experiments.glue import (
    SOFTMAX,
    Bf16,
    Data,
    Edge,
    Epochs,
    GlueSeeds,
    K,
    Lr,
    MaxEval,
    MaxTrain,
    Method,
    Model,
    Paired,
    R,
    Run,
    Schedule,
    SkipBad,
    T,
    Task,
    Validation,
)
from rsoftmax_lab.records import Notice, read_trials
from rsoftmax_lab.report import Section, Table, escape, legend, panels, paragraphs, save_figure, tidy
from rsoftmax_lab.sweep import Address, Engine, Jobs, Out, Quick, Sweep

FEWEST = 3  # settings in the panel of a pretrained model
FLOOR = 1e-5  # smaller errors are drawn here
LABEL_HEIGHT = 0.055  # as a fraction of its panel
KINDS = {
    "calibrated": ("#c1121f", "*"),
    "distance t with an edge": ("#1d4e89", "o"),
    "rate r or count k with an edge": ("#e09f3e", "s"),
    "the paper's mappings": ("#6b705c", "D"),
    "softmax, this library's kernel": ("#555555", "x"),
}


def main(
    model: Model, data: Data, task: Task = None, lr: Lr = None, r: R = None, t: T = None, k: K = None,
    edge: Edge = None, epochs: Epochs = None, schedule: Schedule = None, max_train_samples: MaxTrain = None,
    max_eval_samples: MaxEval = None, validation_samples: Validation = None, skip_bad: SkipBad = False,
    bf16: Bf16 = False, seeds: GlueSeeds = None, quick: Quick = False, out: Out = None, jobs: Jobs = None,
    engine: Engine = "local", address: Address = None,
) -> Path:  # fmt: skip
    """Do a part of Table 2; its records are written to glue.jsonl, and finished ones are not repeated."""
    options = {
        "tasks": task, "learning_rates": lr, "rates": r, "t": t, "k": k, "edge": edge, "epochs": epochs,
        "schedule": schedule, "max_train_samples": max_train_samples, "max_eval_samples": max_eval_samples,
        "validation_samples": validation_samples, "bf16": bf16 or None, "seeds": seeds,
    }  # fmt: skip
    sweep = Sweep(quick, out, jobs, engine, address)
    return glue.reproduce(quick_grid if quick else grid, options, model, data, skip_bad, sweep)


def grid(
    tasks: Sequence[str] = ("SST-2", "RTE"),
    rates: Sequence[float] = (0.2, 0.5, 0.9),
    learning_rates: Sequence[float] = (1e-4,),
    seeds: int = 3,
    t: float = 4.12,
    k: float = 8.0,
    edge: float = 1.0,
    epochs: float = 1.5,
    max_train_samples: int = 2000,
    max_eval_samples: int = 1000,
    validation_samples: int = 0,
    **settings: Any,
) -> list[Run]:
    """Softmax and the paper's r-softmax, then t- and k-softmax with an edge; one recipe without selection.

    t = 4.12 is what ``rsoftmax sparsify --edge 1 --max-error 0.0075`` finds for MiniLM-L6 on training texts of GLUE.
    """
    common = {"learning_rates": learning_rates, "seeds": seeds, "epochs": epochs, **settings}
    common |= {"max_train_samples": max_train_samples, "max_eval_samples": max_eval_samples}
    common |= {"validation_samples": validation_samples}
    runs = glue.grid(tasks, ("softmax", "r_softmax"), rates=rates, **common)
    runs += glue.grid(tasks, ("t_softmax", "k_softmax"), t=t, k=k, edge=edge, **common)
    return sorted(runs, key=lambda run: run.seed)  # complete seeds first


def quick_grid(tasks: Sequence[str] = ("SST-2",), **settings: Any) -> list[Run]:
    """One task and one seed."""
    return grid(tasks, **{"seeds": 1, **settings})


# ---------------------------------------------------------------------------------------------- the report


class Point(NamedTuple):
    """A setting: time relative to torch's attention, accuracy or error, share of zeros, standard error over seeds."""

    time: float
    quality: float
    zeros: float
    spread: float | None = None


class Panel(NamedTuple):
    """The points of one model by setting, the titles of the axes, and the band of softmax's standard error."""

    title: str
    quality: str
    time: str
    points: Mapping[str, Point]
    logarithmic: bool = False
    band: tuple[float, float] | None = None


def report(results: Path, out: Path, notice: Notice) -> Section | None:
    """A figure of fine-tuned and pretrained models, and a table of the former; None without records for them.

    The sections of those experiments have given the notices.
    """
    trials = glue.by_task(read_trials(results / "glue.jsonl", Run, lambda notice: None), lambda notice: None)
    timed = {task: {m: one for m, one in glue.paired(some).items() if one.time} for task, some in trials.items()}
    tasks = {task: methods for task, methods in timed.items() if len({m.r for m in methods if _is_papers(m)}) > 1}
    texts = pretrained.by_text(read_trials(results / "pretrained.jsonl", pretrained.Run, lambda notice: None))
    found = [_finetuned(task, methods, glue.standard_error(trials[task])) for task, methods in tasks.items()]
    found += [_pretrained(title, *text) for title, text in texts.items() if len(text[1]) >= FEWEST]
    if not found:
        return None
    figure(found, out / "rates.png")
    models = ", ".join(sorted({escape(run.model) for task in tasks for run, _ in trials[task]}))
    table = _table(tasks)
    text = paragraphs(
        "## Speed and quality",
        f"""
            *Fine-tuned* models ({models}) have the same recipe for every method; r grows linearly from 0 to the final
            rate, t and k are constant; nothing is selected. *Time* is the processor time of a training step of the
            trained model (forward, loss, backward and AdamW, with dropout) on the task's batches, relative to the same
            step with torch's attention, interleaved batch by batch, for one seed. *Zeros* is the share of exact zeros
            among the attention weights of dev examples. The figure shows differences to softmax, paired by seed, with
            their standard errors over seeds; the grey band is the standard error of an accuracy, from the number of dev
            examples. *Pretrained* models are those of the section above; the labels say the share of zeros.
        """,
        "![Quality against time](rates.png)",
        table if table.lines else "",
    )
    return Section(text, table.rich("Speed and quality"), [out / "rates.png"])


def _is_papers(method: Method) -> bool:
    return method.r is not None and method.edge is None


def _finetuned(task: str, methods: dict[Method, Paired], error: float) -> Panel:
    """Differences to softmax, paired by seed, with their standard errors: methods may have different seeds."""
    points = {}
    for method, one in methods.items():
        difference = glue.Difference.of([0.0]) if method == SOFTMAX else one.difference
        if difference is not None and one.time is not None:
            options = [
                f"{name}={value:g}" for name, value in method._asdict().items() if isinstance(value, float | int)
            ]
            words = " ".join([method.mapping, *options])  # as in `reproduce pretrained`
            points[words] = Point(one.time.value, difference.value, one.zeros.value / 100, difference.error)
    time = "time of a training step relative to sdpa"
    return Panel(f"{task}, fine-tuned", "accuracy minus that of softmax, points", time, points, band=(-error, error))


def _pretrained(title: str, metric: str, settings: dict[str, Any]) -> Panel:
    points = {name: Point(numbers["time"], numbers["error"], numbers["zeros"]) for name, numbers in settings.items()}
    return Panel(title, metric, "time of the whole model relative to sdpa", points, logarithmic=True)


def _table(tasks: dict[str, dict[Method, Paired]]) -> Table:
    """Accuracy, difference to softmax, time and zeros of each method and task."""

    def cells(one: Paired | None) -> list[str]:
        if one is None or one.time is None:
            return [""] * 4
        return [str(one.accuracy), str(one.difference or ""), f"{one.time.value:.2f}", f"{one.zeros.value:.1f}"]

    methods = sorted({method for by_method in tasks.values() for method in by_method}, key=lambda method: method.order)
    names = ["accuracy", "difference", "time", "zeros, %"]
    lines = [[str(method), *(cell for by in tasks.values() for cell in cells(by.get(method)))] for method in methods]
    return Table(["attention", *(f"{task}: {name}" for task in tasks for name in names)], lines)


def figure(found: Sequence[Panel], path: Path) -> None:
    """Quality against time, one panel for each fine-tuned task and each pretrained model."""
    columns = min(2, len(found))
    height = -(-len(found) // columns)
    figure, rows = panels(height, columns, width=5.4, height=0.6 + 3.6 * height)
    axes = [axis for row in rows for axis in row]
    for axis, panel in zip(axes, found, strict=False):
        _draw(axis, panel)
    for axis in axes[len(found) :]:
        axis.set_axis_off()
    legend(figure, axes[: len(found)], columns=3)
    save_figure(figure, path)


def _draw(axis: Axes, panel: Panel) -> None:
    points = panel.points
    if panel.logarithmic:
        axis.set_yscale("log")
        points = {name: point._replace(quality=max(point.quality, FLOOR)) for name, point in points.items()}
    if panel.band is not None:
        axis.axhspan(*panel.band, color="#555555", alpha=0.12, linewidth=0)
    for name, point in points.items():
        colour, marker = KINDS[kind_of(name)]
        size, spread = 11 if marker == "*" else 6, point.spread or 0.0
        axis.errorbar(point.time, point.quality, spread, color=colour, elinewidth=0.8, capsize=2, linestyle="")
        axis.plot(point.time, point.quality, marker, color=colour, label=kind_of(name), markersize=size)
    axis.axvline(1.0, color="#999999", linestyle=":", linewidth=1)
    axis.margins(0.15)
    axis.set_title(panel.title, fontsize=9)
    axis.set_ylabel(panel.quality, fontsize=8)
    axis.set_xlabel(panel.time, fontsize=8)
    tidy(axis)
    _label(axis, points)


def _label(axis: Axes, points: Mapping[str, Point]) -> None:
    """A column of texts at the right, from bottom to top as the points, with a line from each to its point."""
    axis.autoscale_view()
    ordered = sorted(points.items(), key=lambda item: item[1].quality)
    ends = [(point.time, point.quality) for _, point in ordered]
    heights = [y for _, y in (axis.transScale + axis.transLimits).transform(ends)]
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + LABEL_HEIGHT)
    for i in reversed(range(len(heights))):
        heights[i] = min(heights[i], 1 - LABEL_HEIGHT * (len(heights) - 1 - i))
    line = {"arrowstyle": "-", "color": "#bbbbbb", "linewidth": 0.6, "shrinkB": 4}
    for (name, point), end, height in zip(ordered, ends, heights, strict=True):
        text = f"{name.split(',')[0].split('_softmax ')[-1]}, {point.zeros:.0%}"
        axis.annotate(text, end, (1.02, height), textcoords="axes fraction", fontsize=7, va="center", arrowprops=line)


def kind_of(setting: str) -> str:
    """The kind of a setting in the legend."""
    calibrated, distance, rate_or_count, paper, dense = KINDS
    if setting.startswith(pretrained.CALIBRATED):
        return calibrated
    if setting == "softmax":
        return dense
    if "edge" not in setting or setting.endswith("edge=inf"):
        return paper
    return distance if setting.startswith("t_softmax") else rate_or_count
