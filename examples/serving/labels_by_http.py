"""A model of texts, as `rsoftmax train` wrote it, behind HTTP: labels, and the marginals of all labels.

    pip install fastapi uvicorn 'rsoftmax[hf]'
    MODEL=my-model uvicorn labels_by_http:app
    curl 127.0.0.1:8000/predict --json '{"texts": ["what a lovely day"]}'

For rows of numbers take `rsoftmax.sklearn.TableModel.load`, of `'rsoftmax[sklearn]'`, and `list[list[float]]`; the rest
stays.
"""

import os

from fastapi import FastAPI
from pydantic import BaseModel, Field

from rsoftmax.huggingface import LabelModel

model = LabelModel.from_pretrained(os.environ["MODEL"])
app = FastAPI(title="Labels of texts")


class Question(BaseModel):
    texts: list[str] = Field(max_length=256)


class Answer(BaseModel):
    labels: list[str]
    marginals: dict[str, float]


@app.get("/labels")
def labels() -> list[str]:
    return model.names


@app.post("/predict")
def predict(question: Question) -> list[Answer]:
    output = model.outputs(question.texts)
    return [
        Answer(
            labels=[name for name, yes in zip(model.names, chosen, strict=True) if yes],
            marginals=dict(zip(model.names, marginals, strict=True)),
        )
        for chosen, marginals in zip(output.labels.tolist(), output.marginals.tolist(), strict=True)
    ]
