"""Names and settings that are markup, in every place of the report: they are shown as they are, and do nothing."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rsoftmax.labels.models.card import printable
from rsoftmax_lab import records
from rsoftmax_lab.comparison import METHODS, Training
from rsoftmax_lab.experiments import load, load_all
from rsoftmax_lab.experiments.glue import Run as GlueRun
from rsoftmax_lab.experiments.images import Run as ImagesRun
from rsoftmax_lab.experiments.synthetic import Run as SyntheticRun
from rsoftmax_lab.experiments.tabular import Run as TabularRun
from rsoftmax_lab.records import differences, read_trials
from rsoftmax_lab.report import Bold, Report, Table, escape, page, write

HOSTILE = [
    """<img src=x onerror="document.title='ran'">""",
    "<script>document.title='ran'</script>",
    "a|b",
    r"a\|b\\|c" + "\\",
    "![x](nope.png)",
    "[x](javascript:document.title='ran')",
    "<javascript:document.title='ran'>",
    "`code` ``` **bold** __bold__ *i* _i_ ~~s~~ $x$",
    "two\nlines\r\n\r\n# heading\n\n- item\u2028next",
    "\u202egnp.exe\u2066 \u200b \x1b[31m \x00 caf\udce9",
    "&lt;b&gt; &amp; &#60;i&#62;",
    "{{ 7 * 7 }} {% raw %}",
    "<!-- BODY --> --> ]]> </table></body>",
    '" onmouseover="document.title=\'ran\'" x="',
    "[link]: nope",
]


def comparison_row(run: Training) -> dict[str, Any]:
    scores = {"micro": 50.0, "macro": 40.0, "samples": 30.0}
    rule = {"epoch": 1, "validation": scores, "test": scores, "test_last": scores}
    rules = dict.fromkeys(METHODS[run.method].rules, rule)
    return {"run": differences(run), "seconds": 1.0, "epoch_seconds": 0.1, "rules": rules}


def glue_row(run: GlueRun) -> dict[str, Any]:
    scores = {"accuracy": 0.5, "f1": 0.5}
    sizes = {"train": 9, "validation": 9, "dev": 9}
    return {"run": differences(run), "seconds": 1.0, "rows": sizes, "validation": scores, "dev": scores, "sparsity": 0}


def hostile_rows() -> Iterator[tuple[str, dict[str, Any]]]:
    for place, name in enumerate(HOSTILE):
        for method in ("bce", "r_softmax_expected_f1"):
            settings: dict[str, Any] = {"hidden": HOSTILE}
            yield "tabular", comparison_row(TabularRun(method=method, dataset=name, **settings))
            yield "synthetic", comparison_row(SyntheticRun(method=method, seed=place, **settings))
            yield "voc", comparison_row(ImagesRun(method=method, seed=place, model=HOSTILE[1], data="".join(HOSTILE)))
        yield "glue", glue_row(GlueRun("RTE", model=name, data="".join(HOSTILE)))
    yield "glue", glue_row(GlueRun("SST-2", model="".join(HOSTILE)))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("results")
    for name, row in hostile_rows():
        records.append(folder / f"{name}.jsonl", row)
    return write(load_all(), folder, folder / "report", lambda notice: None)


class Cells(HTMLParser):
    """The text of a page, and how many cells each row of its tables has."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.tables, self.tags = "", list[list[int]](), set[str]()
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.add(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append(0)
        elif tag in ("td", "th"):
            self.tables[-1][-1] += 1

    def handle_data(self, data: str) -> None:
        self.text += data


def html_of(report: Report) -> str:
    return next(path for path in report.files if path.name == "report.html").read_text()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_read_off_a_cell_as_it_was_written(name: str, tmp_path: Path) -> None:
    table = Table(["name", name], [[name, Bold(name)], ["x", "y"]])
    text = f"{table}\n\nIn a line: {escape(name)}, and so on.\n"
    found = Cells(page(text, tmp_path))
    assert found.text.count(printable(name)) == 4
    assert found.tables == [[2, 2, 2]]
    assert not found.tags & {"img", "script", "a", "em", "code", "s", "h1", "ul", "i", "b"}


def test_every_name_and_setting_is_shown_as_it_is(report: Report) -> None:
    found = Cells(html_of(report))
    for name in HOSTILE:
        assert printable(name) in found.text
    assert "hidden = " in found.text
    assert all(len(set(widths)) == 1 for widths in found.tables)
    assert not found.tags & {"script", "a"}
    drawn = len([path for path in report.files if path.suffix == ".png"])
    assert html_of(report).count("<img ") == html_of(report).count('<img src="data:image/png;base64,') == drawn


def test_the_terminal_shows_names_as_they_are(report: Report) -> None:
    console = Console(width=4000)
    with console.capture() as shown:
        console.print(report.sections["tabular"].summary)
    assert "\x1b[31m" not in shown.get()
    assert printable(HOSTILE[9]) in shown.get()


def chromium(page: Path) -> tuple[str, str]:
    """A page's document after its scripts, if any ran, and what the browser says of it."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no browser is installed; on Debian: apt-get install chromium")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=2000"]
    done = subprocess.run(
        [program, *options, f"--user-data-dir={page.parent / 'profile'}", "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert "</html>" in done.stdout, done.stderr
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


def test_in_a_browser_nothing_runs_and_all_is_shown(report: Report) -> None:
    shown, console = chromium(next(path for path in report.files if path.name == "report.html"))
    assert re.findall("<title>(.*)</title>", shown) == ["rsoftmax: results"]
    assert console == ""
    found = Cells(shown)
    for name in HOSTILE:
        assert printable(name) in found.text


def test_in_a_browser_the_policy_of_the_page_stops_a_script_and_an_image_from_elsewhere(tmp_path: Path) -> None:
    evil = """<script>document.title='ran'</script><img src="x.png" onerror="document.title='ran'">"""
    whole = page("text", tmp_path)
    for name, html in {"with": whole, "without": re.sub(r"<meta http-equiv[^>]*>", "", whole)}.items():
        (tmp_path / f"{name}.html").write_text(html.replace("</body>", f"{evil}</body>"))
    shown, console = chromium(tmp_path / "with.html")
    assert "<title>rsoftmax: results</title>" in shown
    assert "Content Security Policy" in console
    assert "<title>ran</title>" in chromium(tmp_path / "without.html")[0]  # so the test can fail


BROKEN: list[tuple[str, tuple[str, ...], Any]] = [
    ("synthetic", ("rules", "labels", "test", "micro"), None),
    ("synthetic", ("rules", "labels", "validation"), {}),
    ("synthetic", ("rules", "labels"), "high"),
    ("synthetic", ("rules",), [1]),
    ("synthetic", ("epoch_seconds",), None),
    ("synthetic", ("run", "seed"), "first"),
    ("synthetic", ("run", "classes"), None),
    ("synthetic", ("run", "epochs"), 10**400),
    ("tabular", ("run", "dataset"), ["a"]),
    ("tabular", ("rules", "labels", "test", "micro"), float("inf")),
    ("voc", ("run", "lr"), None),
    ("voc", ("run", "dataset"), "imagenet"),
    ("voc", ("rules", "labels", "curve"), [None]),
    ("glue", ("dev", "accuracy"), None),
    ("glue", ("dev", "accuracy"), 70),
    ("glue", ("rows", "dev"), 0),
    ("glue", ("run", "model"), ["bert"]),
    ("glue", ("run", "epochs"), {}),
    ("glue", ("sparsity",), None),
    ("glue", ("step",), {"seconds": 1.0, "sdpa_seconds": 1.0, "ratio": None}),
    ("glue", ("version",), 2),
]


@pytest.mark.train
def test_a_row_with_an_impossible_value_is_left_out_with_a_notice(tmp_path: Path) -> None:
    whole = {
        "synthetic": comparison_row(SyntheticRun(method="bce")),
        "tabular": comparison_row(TabularRun(method="bce")),
        "voc": comparison_row(ImagesRun(method="bce")),
        "glue": glue_row(GlueRun("RTE")),
    }
    for number, (command, path, value) in enumerate(BROKEN):
        folder = tmp_path / str(number)
        folder.mkdir()
        file = folder / f"{command}.jsonl"
        records.append(file, whole[command])
        broken = json.loads(json.dumps(whole[command]))
        inner = broken
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = value
        broken["run"].setdefault("seed", 1)
        with file.open("a") as rows:
            rows.write(json.dumps(broken) + "\n")
        notices: list[str] = []
        assert len(read_trials(file, load(command).Run, notices.append)) == 1, (command, path, value)
        assert notices == [f"{file}: 1 records are not runs known to this version and are left out"], (
            command,
            path,
            value,
        )
