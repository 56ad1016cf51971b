"""The command line: ``rsoftmax list | plot | bench | attention-map | reproduce | report | predict``, each in a file."""

import typer

from rsoftmax.cli import attention_map, bench, glue, images, mappings, report, reproduce

app = typer.Typer(help="Sparse probability mappings with a controllable rate of zeros.", no_args_is_help=True)
app.add_typer(mappings.app)
app.add_typer(bench.app, name="bench")
app.add_typer(attention_map.app)
reproduce.app.add_typer(glue.app)
app.add_typer(reproduce.app, name="reproduce")
app.add_typer(report.app)
app.add_typer(images.app)
