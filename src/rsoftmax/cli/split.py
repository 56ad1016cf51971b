"""``rsoftmax split``."""

from pathlib import Path
from typing import Annotated

import typer

from rsoftmax.cli.arguments import usage_errors


def split(
    data: Annotated[Path, typer.Argument(help="A table: .csv, .tsv, .jsonl or .parquet; or a folder with one table.")],
    labels: Annotated[str, typer.Option(help="The label column: cells such as 'a;b', or lists.")],
    out: Annotated[Path, typer.Option(help="The folder to write train, validation and test rows to.")],
    test: Annotated[float, typer.Option(help="The share of test rows.")] = 0.2,
    validation: Annotated[float, typer.Option(help="The share of validation rows.")] = 0.0,
    groups: Annotated[
        str | None, typer.Option(help="A column; rows with the same value stay in one file, as texts of one author.")
    ] = None,
    separator: Annotated[str, typer.Option(help="The separator between the labels of a cell.")] = ";",
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="The random seed.")] = 0,
) -> None:
    """Split a table into files in which every label has the same share of rows."""
    import numpy as np
    from sklearn.preprocessing import MultiLabelBinarizer

    from rsoftmax.labels.estimators.splits import stratified_parts
    from rsoftmax.labels.models.card import count_of
    from rsoftmax.labels.models.tables import ending, read, write

    shares = {"train": 1 - validation - test, "validation": validation, "test": test}
    if not (test > 0 and validation >= 0 and shares["train"] > 0):
        message = (
            f"the shares must be positive, with a sum below 1; got {test:g} for test, {validation:g} for validation"
        )
        raise typer.BadParameter(message, param_hint="--test")
    shares = {name: share for name, share in shares.items() if share}
    with usage_errors("DATA"):
        table = read(data)
        matrix = MultiLabelBinarizer(sparse_output=True).fit_transform(table.labels(labels, separator))
        if not matrix.nnz:
            raise ValueError(f"{table.path}: the column {labels!r} contains no labels")
        group_of = None if groups is None else [repr(cell) for cell in table.column(groups)]
    part = stratified_parts(matrix, list(shares.values()), np.random.RandomState(seed), group_of)
    rows = {name: np.flatnonzero(part == i) for i, name in enumerate(shares)}
    if empty := [name for name, indices in rows.items() if not len(indices)]:
        message = f"no rows are left for {empty[0]}; {table.path} has {count_of(len(table), 'row')}"
        raise typer.BadParameter(message, param_hint="--groups" if groups else "DATA")
    with usage_errors("--out"):
        paths = [out / f"{name}{ending(table.path)}" for name in rows]
        write(table, paths, part.tolist())
    for path, indices in zip(paths, rows.values(), strict=True):
        missing = int((matrix[indices].sum(0) == 0).sum())
        without = f", {count_of(missing, 'label')} missing" if missing else ""
        typer.echo(f"wrote {path}: {count_of(len(indices), 'row')}{without}")
