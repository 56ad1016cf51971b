"""A folder of small sets in Mulan's format, for tests."""

from pathlib import Path

import pytest

LABELS = '<labels xmlns="http://mulan.sourceforge.net/labels">{}</labels>'

TOYS = """@relation toys

@attribute size numeric
@attribute round {0,1}
@attribute colour {red,green,'light blue'}
@attribute 'Child\\'s' {0,1}
@attribute loud {0,1}
@data
"""
TOY_ROWS = [
    "1.5,0,red,0,1", "2.5,1,'light blue',1,1", "% a remark", "0.5,1,green,1,0", "", "9,0,red,0,0", "3,1,green,1,1",
    "4,0,red,0,1", "2,1,green,1,0", "1,1,red,0,0", "7,0,'light blue',1,1", "6,1,red,1,0", "5,0,green,0,1",
]  # fmt: skip

WORDS = "@relation words\n@attribute a {0,1}\n@attribute b {0,1}\n@attribute T1 {0,1}\n@attribute T2 {0,1}\n@data\n"
WORD_ROWS = [[n & 1, n >> 1 & 1, n & 1, n >> 2 & 1] for n in range(10)]


def save(folder: Path, name: str, labels: list[str], train: str, test: str) -> None:
    (folder / name).mkdir()
    listed = "\n".join(f'<label name="{label}"></label>' for label in labels)
    (folder / name / f"{name}.xml").write_text(LABELS.format(listed))
    (folder / name / f"{name}-train.arff").write_text(train)
    (folder / name / f"{name}-test.arff").write_text(test)


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    """A folder of three sets; "thin" is "thick", stored sparsely."""
    folder = tmp_path / "sets"
    folder.mkdir()
    save(folder, "toys", ["loud", "Child's"], TOYS + "\n".join(TOY_ROWS[:-1]), TOYS + "\n".join(TOY_ROWS[-4:]))
    dense = WORDS + "\n".join(",".join(map(str, row)) for row in WORD_ROWS)
    thin = WORDS + "\n".join("{" + ",".join(f"{i} {v}" for i, v in enumerate(row) if v) + "}" for row in WORD_ROWS)
    save(folder, "thick", ["T1", "T2"], dense, dense)
    save(folder, "thin", ["T1", "T2"], thin, thin)
    return folder
