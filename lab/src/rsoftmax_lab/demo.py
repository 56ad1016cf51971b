"""``rsoftmax demo``: what the library does, computed on this machine in about a minute, in four short blocks."""

import csv
import random
import shlex
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor

from rsoftmax import k_softmax, r_softmax, softmax, t_softmax
from rsoftmax.attention import attention_weights, sparse_attention
from rsoftmax.plots import compare_mappings, draw_mappings
from rsoftmax_lab.bench.timing import Call, machine, take_turns, threads
from rsoftmax_lab.comparison import BEST_OF_OURS, LITERAL, Comparison, Predictor
from rsoftmax_lab.experiments import synthetic
from rsoftmax_lab.records import read_trials
from rsoftmax_lab.report import Table, save_figure, tidy
from rsoftmax_lab.sweep import sweep

Advance = Callable[[float], None]  # moves the progress bar by seconds of an idle machine with two cores
LOGITS = [2.0, 1.5, 0.3, -1.0]


def demo(out: Path) -> None:
    """Print the blocks, and draw figures into the folder; finished runs in it are not repeated."""
    console = Console(highlight=False)
    out.mkdir(parents=True, exist_ok=True)
    console.print(f"[bold]rsoftmax[/] on {machine()}\n", soft_wrap=True)
    blocks = {mappings: 1, figure2: SECONDS * len(runs()), labels: 14, attention: 10}
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task, before = bar.add_task("", total=sum(blocks.values())), 0.0
        for block, seconds in blocks.items():
            bar.update(task, description=block.__name__)
            title, shown, sentence = block(out, partial(bar.advance, task))
            before += seconds
            bar.update(task, completed=before)
            console.print(title, style="bold")
            console.print(shown.rich("") if isinstance(shown, Table) else shown, markup=False, soft_wrap=True)
            console.print(f"{sentence}\n", markup=False)
    console.print("Figures:", *(f"  {path}" for path in sorted(out.glob("*.png"))), sep="\n")
    console.print("Try next:", *(f"  {command:76} {text}" for command, text in NEXT.items()), sep="\n", soft_wrap=True)


NEXT = {
    "rsoftmax train YOUR.csv --text COLUMN --labels COLUMN --out my-model": "your texts, or --features, or --image",
    "rsoftmax sparsify --model MODEL --texts FILE --max-error 0.005 --out sparse": "zeros in a model's attention",
    "rsoftmax bench --quick": "the mappings, relative to torch.softmax",
}


class Block(NamedTuple):
    """What is printed: a title, a table or text, and a sentence."""

    title: str
    shown: Table | str
    sentence: str


# ---------------------------------------------------------------------------------------------- mappings


def mappings(out: Path, advance: Advance) -> Block:
    """One row of logits."""
    x = torch.tensor(LOGITS)
    rows = {
        "softmax": softmax(x),
        "t_softmax, t = 2": t_softmax(x, 2.0),
        "r_softmax, r = 0.5": r_softmax(x, 0.5),
        "k_softmax, k = 3": k_softmax(x, 3.0),
    }
    lines = [[name, *("0" if p == 0 else f"{p:.3f}" for p in row.tolist())] for name, row in rows.items()]
    draw_some_mappings(out / "mappings.png")
    return Block(
        "1. Probabilities with the zeros that you choose",
        Table(["logits", *map(str, LOGITS)], lines),
        "Softmax has no zeros. Choose t, the distance from the largest logit, r, the share of zeros, or k, the number"
        " of entries that keep a weight.",
    )


DRAWN = ("softmax", "t_softmax", "r_softmax", "k_softmax", "sparsemax", "entmax15")


def draw_some_mappings(path: Path) -> None:
    """The row through six mappings; also the figure of the README."""
    every = compare_mappings(LOGITS, {"r": 0.5, "k": 3.0})
    draw_mappings({title: p for title, p in every.items() if title.split(",")[0] in DRAWN}, LOGITS, path)


# ---------------------------------------------------------------------------------------------- Figure 2

POINTS, SOFTMAX = synthetic.QUICK[:2], Predictor("softmax", "p0=0.05")
ROWS = {  # with whether a threshold is tuned on labels
    BEST_OF_OURS: "no",
    Predictor("bce", "tuned"): "yes",
    Predictor("bce"): "no",
    Predictor("softmax", "tuned"): "yes",
    SOFTMAX: "no",
    LITERAL: "no",
    Predictor("sparsemax_hinge"): "no",
    Predictor("sparsemax_huber"): "no",
}
TITLES = {LITERAL: "r-softmax, the paper's head", BEST_OF_OURS: "r-softmax, expected F1 (this library)"}
SECONDS = 3  # of a run
RED, BLUE, GREY = "#c1121f", "#1d4e89", "#8a8a8a"


def runs() -> list[synthetic.Run]:
    """Two points of Figure 2, as in the full experiment."""
    return synthetic.grid(1, POINTS, dict.fromkeys(predictor.method for predictor in ROWS))


def figure2(out: Path, advance: Advance) -> Block:
    """Two points of Figure 2, trained as in the full experiment."""
    path, console = out / "synthetic.jsonl", Console(quiet=True)
    sweep(runs(), synthetic.run, path, quick=True, console=console, progress=lambda record: advance(SECONDS))
    comparison = Comparison.of(read_trials(path, synthetic.Run, console.print).alike(console.print))
    means = {predictor: comparison.mean(predictor, POINTS, "test") for predictor in ROWS}
    f1 = {predictor: mean.value for predictor, mean in means.items() if mean is not None}
    lines = [
        [TITLES.get(predictor, predictor.title), f"{f1[predictor]:.2f}", ROWS[predictor]]
        for predictor in sorted(f1, key=lambda predictor: -f1[predictor])
    ]
    draw_scores(lines, out / "figure2.png")
    ours, tuned = f1[BEST_OF_OURS], max(value for predictor, value in f1.items() if ROWS[predictor] == "yes")
    return Block(
        f"2. Labels without a threshold to tune ({len(POINTS)} of 27 points of the paper's Figure 2)",
        Table(["micro-F1 on test", "mean", "threshold tuned on labels"], lines),
        f"Thresholds derived from probabilities score {ours:.1f}: {ours - tuned:+.1f} against the best tuned threshold,"
        f" {ours - f1[SOFTMAX]:+.1f} against softmax cut at .05.",
    )


def draw_scores(lines: Sequence[Sequence[str]], path: Path) -> None:
    """A bar for each line of the table."""
    figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
    for name, score, tuned in lines:
        colour = RED if name == TITLES[BEST_OF_OURS] else BLUE if tuned == "yes" else GREY
        bar = axis.barh(name, float(score), color=colour)
        axis.bar_label(bar, [f"{score}, tuned" if tuned == "yes" else score], padding=4)
    axis.set(xlim=(0, 115), xlabel="micro-F1 on test, %")
    axis.invert_yaxis()
    tidy(axis)
    save_figure(figure, path)


# ---------------------------------------------------------------------------------------------- texts

PHRASES = {
    "billing": ("I was charged twice", "the invoice is wrong", "my card was debited again", "the bill is too high"),
    "delivery": ("the parcel never came", "my neighbour has it", "tracking has not moved", "it came a week late"),
    "login": ("I cannot sign in", "the password reset does nothing", "my account is locked", "the code never arrives"),
    "praise": ("your support was kind", "the colour is lovely", "it works like a charm", "I would buy it again"),
    "refund": ("I want my money back", "please refund the order", "when do you pay it back", "I send it back"),
}
FILLERS = ("hello there", "I ordered on Monday", "please have a look", "this is my second message", "thanks in advance")
TEXTS, NEW = 600, "I was charged twice and want my money back"


def write_texts(path: Path) -> None:
    """Messages to a shop; each phrase has one label, and words of all kinds are mixed in."""
    draw = random.Random(0)
    words = " ".join(phrase for phrases in (*PHRASES.values(), FILLERS) for phrase in phrases).split()
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["text", "tags"])
        for _ in range(TEXTS):
            tags = draw.sample(sorted(PHRASES), draw.choice([0, 1, 1, 2, 3]))
            phrases = [draw.choice(PHRASES[tag]) for tag in tags] + draw.sample(FILLERS, 2)
            noisy = [" ".join(w for w in phrase.split() if draw.random() > 0.35) for phrase in phrases]
            noise = " ".join(draw.sample(words, 4))
            table.writerow([", ".join(draw.sample([*noisy, noise], len(noisy) + 1)), ";".join(sorted(tags))])


def labels(out: Path, advance: Advance) -> Block:
    """From a table of texts to labels, by the commands of the README."""
    texts, model = out / "texts.csv", out / "labels"
    write_texts(texts)
    commands = [
        f"rsoftmax train {texts} --text text --labels tags --out {model} --average macro",
        f"rsoftmax predict {model} {shlex.quote(NEW)}",
    ]
    shown = []
    for command in commands:
        shown.append(f"$ {command}\n{call(command)}")
        advance(7)
    return Block(
        f"3. From texts to labels ({TEXTS} texts; nothing is downloaded)",
        "\n".join(shown),
        "Predicted are the labels with the best expected macro-F1. The model is one folder, without pickle.",
    )


def call(command: str) -> str:
    """What a command of this package prints."""
    from rsoftmax.cli import app

    printed = StringIO()
    with redirect_stdout(printed), redirect_stderr(StringIO()):
        app(shlex.split(command)[1:], standalone_mode=False)
    return printed.getvalue().strip()


# ---------------------------------------------------------------------------------------------- attention

LENGTHS, HEADS, WIDTH, T = (512, 1024, 2048, 4096), 2, 64, 6.0
SPREAD = 2.7  # standard deviation of the scores: about as many zeros as t = 6 gives SmolLM2 at these lengths


def attention(out: Path, advance: Advance) -> Block:
    """Causal attention with random queries and keys, on one thread."""
    lines = []
    with threads(1):
        for length in LENGTHS:
            q, k, v = torch.randn(3, 1, HEADS, length, WIDTH, generator=torch.Generator().manual_seed(0))
            q = SPREAD * q
            torchs: Call = partial(F.scaled_dot_product_attention, q, k, v, is_causal=True)
            ours = partial(sparse_attention, q, k, v, mapping="t_softmax", t=T, edge=0.0, is_causal=True)
            ratio = take_turns([torchs, ours], 0, 0.5, 5)[1].ratio
            entmax = [f"{take_turns([torchs, call], 0, 0, 2)[1].ratio:.0f}" for call in entmax_attention(q, k, v)]
            weights = attention_weights(q, k, mapping="t_softmax", t=T, edge=0.0, is_causal=True)
            zeros = 1 - float((weights > 0).sum() / (HEADS * length * (length + 1) / 2))
            lines.append([f"{length:,}", f"{zeros:.0%}", f"{ratio:.2f}", *entmax])
            advance(10 / len(LENGTHS))
    draw_times(lines, out / "attention.png")
    columns = ["keys", "zeros", "time, torch's = 1", "entmax package"]
    return Block(
        "4. Attention that skips keys without weight",
        Table(columns[: len(lines[0])], lines),
        f"With {LENGTHS[-1]:,} keys it takes {lines[-1][2]} of the time of torch's attention (t-softmax with"
        f" t = {T:g}, causal, one thread, random queries and keys). `rsoftmax sparsify` finds t for a model.",
    )


def entmax_attention(q: Tensor, k: Tensor, v: Tensor) -> list[Call]:
    """Attention with the entmax package's 1.5-entmax, if it is installed."""
    try:
        entmax15 = import_module("entmax").entmax15
    except ModuleNotFoundError:
        return []
    later = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    return [lambda: entmax15((q @ k.mT / WIDTH**0.5).masked_fill(later, -torch.inf), dim=-1) @ v]


def draw_times(lines: Sequence[Sequence[str]], path: Path) -> None:
    """Time by length, with the share of zeros."""
    ratios = [float(line[2]) for line in lines]
    figure, axis = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
    axis.axhline(1, color="#555555", linestyle="--")
    axis.text(LENGTHS[0], 1.02, "torch's attention", color="#555555", fontsize=9)
    axis.plot(LENGTHS, ratios, "o-", color=RED)
    for length, ratio, line in zip(LENGTHS, ratios, lines, strict=True):
        axis.annotate(
            f"{line[1]} zeros", (length, ratio), (0, -16), textcoords="offset points", ha="center", fontsize=9
        )
    axis.set_xscale("log", base=2)
    axis.set(xticks=LENGTHS, xticklabels=map(str, LENGTHS), xlabel="keys", ylabel="relative time")
    axis.set_ylim(0, 1.2 * max(1.0, *ratios))
    axis.margins(x=0.12)
    axis.set_title(f"causal attention, t-softmax, t = {T:g}", fontsize=11)
    tidy(axis)
    save_figure(figure, path)
