"""
Labelling texts in five lines
=============================

From texts and their tags to a saved model that tags new texts. The encoder is a small one with random weights, created
here so that nothing is downloaded. To use a real one, such as all-MiniLM-L6-v2, pass its folder as an argument.
"""

import random
import sys
import tempfile
from pathlib import Path

import torch
from transformers import BertConfig, BertModel, BertTokenizer, logging

from rsoftmax.labels import LabelModel

logging.disable_progress_bar()
random.seed(0)

# %%
# Texts about two subjects, one, or none.
SUBJECTS = {
    "sport": ["goal", "match", "referee", "striker", "penalty"],
    "weather": ["rain", "sun", "storm", "forecast", "cloud"],
    "money": ["bank", "price", "tax", "wage", "loan"],
}
FILLING = ["the", "a", "today", "again", "about", "and", "we", "heard", "much", "little", "old", "new"]


def text(subjects: list[str]) -> str:
    words = [word for subject in subjects for word in random.sample(SUBJECTS[subject], 2)]
    words += random.choices(FILLING, k=6)
    return " ".join(random.sample(words, len(words)))


labels = [random.sample(list(SUBJECTS), random.choice([0, 1, 1, 2])) for _ in range(240)]
texts = [text(subjects) for subjects in labels]
print(f"{texts[0]!r}: {labels[0]}")


# %%
# A small encoder and a tokenizer for these words, saved as a Transformers folder.
def small_encoder(folder: Path) -> Path:
    words = [*FILLING, *(word for subject in SUBJECTS.values() for word in subject)]
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    BertTokenizer(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 1, "hidden_size": 48, "num_attention_heads": 2, "intermediate_size": 48}
    BertModel(BertConfig(vocab_size=len(words) + 5, **sizes)).save_pretrained(folder)
    return folder


work = Path(tempfile.mkdtemp())
encoder = sys.argv[1] if len(sys.argv) > 1 else small_encoder(work)

# %%
# The five lines. ``average`` is the F1 that you report; the thresholds are chosen for it.
model = LabelModel.from_encoder(encoder, labels=list(SUBJECTS), average="macro")
model.fit(texts[:180], labels[:180])
print(model.predict(["today we heard about the match and the referee", "rain storm and a new tax loan again"]))
model.save(work / "subjects")
scores = LabelModel.load(work / "subjects").evaluate(texts[180:], labels[180:])

# %%
# Evaluation on 60 held-out texts.
print(f"macro-F1 {scores.macro:.3f}, micro-F1 {scores.micro:.3f}, calibration error {scores.calibration_error:.3f}")
for label in scores.labels:
    print(f"{label.label:8} precision {label.precision:.2f}   recall {label.recall:.2f}")
