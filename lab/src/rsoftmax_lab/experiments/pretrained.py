"""Sparse attention in pretrained models without training: quality, zeros and time of every kind of setting.

A run is one model on texts of one kind and one length. Every setting replaces softmax in all layers; the errors of the
outputs, relative to the dense model, and the processor times are measured in the same runs, text by text. Zeros are
counted on the first batch. Thresholds that ``rsoftmax sparsify`` found on other texts take part as settings, too.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

import rsoftmax
from rsoftmax._transformers import load_pretrained
from rsoftmax.attention import head_parameters, register_attention, set_attention
from rsoftmax.attention.transformers.compare import Comparison, compare, text_batches
from rsoftmax.attention.transformers.measure import zeros_of
from rsoftmax.cli.arguments import usage_errors
from rsoftmax.registry import MAPPINGS
from rsoftmax_lab.data import absolute, source_name
from rsoftmax_lab.records import BaseRun, Notice, Record, Trial, Trials, number, positive, read_trials, share
from rsoftmax_lab.report import Section, Table, escape, paragraphs
from rsoftmax_lab.sweep import Address, Engine, Jobs, Out, Quick, Sweep

SETTINGS = (
    "t_softmax t=8 edge=0",
    "t_softmax t=6 edge=0",
    "t_softmax t=5 edge=0",
    "t_softmax t=6 edge=1",
    "t_softmax t=6 edge=inf",
    "r_softmax r=0.5 edge=0",
    "r_softmax r=0.75 edge=0",
    "r_softmax r=0.9 edge=0",
    "r_softmax r=0.5 edge=inf",
    "k_softmax k=64 edge=0",
    "softmax",
)
"""``edge=inf`` is the paper's mapping; softmax is dense attention with this library's kernel."""

CALIBRATED = "calibrated"
QUERIES = 128  # of each text whose zeros are counted
load = lru_cache(maxsize=1)(load_pretrained)


@dataclass(frozen=True)
class Run(BaseRun):
    """One model on texts of one kind and one length.

    Attributes:
        model: the model's name.
        texts: the name of the file of texts.
        length: the number of tokens per text.
        samples: the number of texts.
        settings: the arguments of ``set_attention``, in words.
        calibrated: the names of calibrated folders.
    """

    DATA = ("model", "texts", "length")
    SCHEMA: ClassVar = {
        "metric": str,
        "texts": number,
        "settings": [
            {"error": number, "zeros": share, "time": positive}
            | dict.fromkeys(("standard_error?", "perplexity?"), (number, None))
        ],
    }

    model: str
    texts: str
    length: int = 1024
    samples: int = 4
    settings: tuple[str, ...] = SETTINGS
    calibrated: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for words in self.settings:
            arguments(words)


def arguments(words: str) -> dict[str, Any]:
    """The arguments of ``set_attention``.

    Example:
        >>> arguments("t_softmax t=6 edge=0")
        {'mapping': 't_softmax', 't': 6.0, 'edge': 0.0}
    """
    mapping, *options = words.split()
    if mapping not in MAPPINGS:
        raise ValueError(f"setting: there is no mapping {mapping!r}; use one of {', '.join(MAPPINGS)}")
    try:
        return {"mapping": mapping, **{name: float(value) for name, value in (word.split("=") for word in options)}}
    except ValueError:
        raise ValueError(f"setting: expected words like 't_softmax t=6 edge=0', got {words!r}") from None


def main(
    model: Annotated[str, typer.Option(help="A language model or an encoder: a folder or hub id.")],
    texts: Annotated[
        list[Path], typer.Option(help="A UTF-8 file of texts of one kind; repeatable.", exists=True, dir_okay=False)
    ],
    calibrated: Annotated[
        list[Path] | None,
        typer.Option(help="A folder that `rsoftmax sparsify` wrote for this model; repeatable.", exists=True),
    ] = None,
    length: Annotated[list[int] | None, typer.Option(min=2, help="Tokens per text; repeatable. Default: 1024.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="The number of texts. Default: 4, 2 with --quick.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(help="As in 't_softmax t=6 edge=0'; repeatable. Default: eleven, two of them with --quick."),
    ] = None,
    quick: Quick = False, out: Out = None, jobs: Jobs = None, engine: Engine = "local", address: Address = None,
) -> Path:  # fmt: skip
    """Measure the model on every kind of text at every length."""
    with usage_errors():
        hashes = {path: hashlib.sha256(path.read_bytes()).hexdigest()[:8] for path in texts}
        files = {f"{path.stem}@{digest}": path.resolve() for path, digest in hashes.items()}
        names = {path: source_name(str(path), "*.safetensors", "*.json") for path in calibrated or []}
        folders = {f"{CALIBRATED}, {name}": thresholds(path.resolve()) for path, name in names.items()}
        name, lengths = source_name(model, "*.safetensors", "*.json", "*.txt"), length or [1024]
        settings = setting or (("t_softmax t=6 edge=0", "softmax") if quick else SETTINGS)
        grid = [(n, file) for n in ([min(lengths)] if quick else lengths) for file in files]
        runs = [Run(name, file, n, samples or (2 if quick else 4), tuple(settings), tuple(folders)) for n, file in grid]
    sweep = Sweep(quick, out, jobs, engine, address).on_device()
    return sweep.do("pretrained", runs, partial(run, absolute(model), files, folders))


def thresholds(folder: Path) -> dict[str, Any]:
    """The arguments of ``set_attention`` of a model with certified thresholds."""
    register_attention()
    _, model = load_pretrained(str(folder), task_head=True)
    if "certificate" not in getattr(model.config, "rsoftmax", {}):
        raise ValueError(f"{folder} has no certified thresholds; `rsoftmax sparsify --out FOLDER` writes them")
    return {"mapping": "t_softmax", "t": head_parameters(model).values.tolist(), "edge": model.config.rsoftmax["edge"]}


def run(model: str, files: Mapping[str, Path], calibrated: Mapping[str, dict[str, Any]], run: Run) -> Record:
    """Measure one model on texts of one kind and one length, in all settings."""
    tokenizer, network = load(model, task_head=True)
    text = files[run.texts].read_text(encoding="utf-8")
    batches = [dict(batch) for batch in text_batches(tokenizer, network, text, run.length, run.samples)]
    if network.can_generate():  # a language model has a loss
        batches = [{**batch, "labels": batch["input_ids"]} for batch in batches]
    settings = {words: arguments(words) for words in run.settings} | {name: calibrated[name] for name in run.calibrated}
    compared = compare(network, batches, list(settings.values()))
    before, results = network.config._attn_implementation, {}
    for (name, setting), comparison in zip(settings.items(), compared, strict=True):
        set_attention(network, **setting)
        zeros, _ = zeros_of(network, batches[:1], max(run.length // QUERIES, 1))
        results[name] = _numbers(comparison) | {"zeros": round(zeros.mean(), 4)}
    network.set_attn_implementation(before)
    about = {"metric": compared[0].metric, "texts": compared[0].texts}
    return {**about, "settings": results, "version": rsoftmax.__version__}


def _numbers(comparison: Comparison) -> dict[str, float | None]:
    mean, deviation = comparison.mean()
    dense, sparse = comparison.loss
    return {
        "error": float(f"{mean:.4g}"),
        "standard_error": None if math.isnan(deviation) else float(f"{deviation:.3g}"),
        "time": round(comparison.time, 4),
        "perplexity": None if math.isnan(dense) else round(100 * math.expm1(sparse - dense), 3),
        "dense_perplexity": None if math.isnan(dense) else round(math.exp(dense), 3),
    }


# ---------------------------------------------------------------------------------------------- the report


def report(results: Path, out: Path, notice: Notice) -> Section | None:
    """A table for each model, kind of text and length."""
    trials = read_trials(results / "pretrained.jsonl", Run, notice)
    if not trials:
        return None
    tables = {title: (metric, _table(settings)) for title, (metric, settings) in by_text(trials).items()}
    text = paragraphs(
        "## Pretrained models without training",
        """
            Softmax is replaced in all layers of a pretrained model; nothing is trained. *Error* is the Kullback-Leibler
            divergence of the next-token distribution from the dense model's, in nats per token, or one minus the cosine
            of the embeddings, with its standard error over texts. *Zeros* is the share of exact zeros among the weights
            that are not masked, on the first batch of texts. *Perplexity* is the change relative to the dense model.
            *Time* is the processor time of the whole model relative to the same model with torch's attention, text by
            text in the same run. `edge=inf` is the paper's mapping. *Calibrated* thresholds were found and certified on
            other texts. The figure is in the next section.
        """,
        *(
            part
            for title, (metric, table) in tables.items()
            for part in (f"### {escape(title)}", f"Error: {escape(metric)}.", table)
        ),
    )
    title, (_, table) = next(iter(tables.items()))
    return Section(text, table.rich(title))


def by_text(trials: Trials[Run]) -> dict[str, tuple[str, dict[str, Any]]]:
    """By model, kind of text and length: what the error is, and the measurements by setting; later runs add to them."""

    def order(trial: Trial[Run]) -> tuple[Any, ...]:
        """Model, length and texts by name, whatever their content; then the time."""
        run, record = trial
        return run.model.split("@")[0], run.length, run.texts.split("@")[0], record["finished"]

    measured: dict[str, tuple[str, dict[str, Any]]] = {}
    for trial in sorted(trials, key=order):
        model, length, texts, _ = order(trial)
        _, settings = measured.setdefault(f"{model}, {texts}, {length} tokens", (trial.record["metric"], {}))
        texts = trial.record["texts"]
        settings |= {name: {**numbers, "texts": texts} for name, numbers in trial.record["settings"].items()}
    return measured


def _table(settings: dict[str, Any]) -> Table:
    lines = []
    for name, numbers in settings.items():
        error = f" ± {numbers['standard_error']:.5f}" if numbers.get("standard_error") else ""
        perplexity = "" if numbers.get("perplexity") is None else f"{numbers['perplexity']:+.2f} %"
        cells = [f"{100 * numbers['zeros']:.1f}", f"{numbers['error']:.5f}{error}", perplexity]
        lines.append([name, *cells, f"{numbers['time']:.2f}", str(numbers["texts"])])
    return Table(["setting", "zeros, %", "error", "perplexity", "time", "texts"], lines)
