"""Serve a text model saved by `rsoftmax train` over HTTP: labels, and the marginals of all labels.

    pip install fastapi uvicorn 'rsoftmax[labels]'
    MODEL=my-model uvicorn labels_by_http:app
    curl 127.0.0.1:8000/predict --json '{"texts": ["what a lovely day"]}'

For rows of numbers, use `rsoftmax.labels.TableModel.load` and `list[list[float]]` instead.
"""

import os

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from rsoftmax.labels import LabelModel

model = LabelModel.from_pretrained(os.environ["MODEL"])
app = FastAPI(title="Text labels")


class Question(BaseModel):
    texts: list[str] = Field(max_length=256)


class Answer(BaseModel):
    labels: list[str]
    marginals: dict[str, float]


@app.exception_handler(RequestValidationError)
def reject(request: Request, error: RequestValidationError) -> JSONResponse:
    """Answer 422 without the input, which JSON cannot represent if it contains lone surrogates."""
    return JSONResponse({"detail": [{"loc": one["loc"], "msg": one["msg"]} for one in error.errors()]}, 422)


@app.get("/labels")
def labels() -> list[str]:
    return model.names


@app.post("/predict")
def predict(question: Question) -> list[Answer]:
    try:
        output = model.outputs(question.texts)
    except ValueError as error:
        raise HTTPException(422, str(error)) from None
    return [
        Answer(
            labels=[name for name, yes in zip(model.names, chosen, strict=True) if yes],
            marginals=dict(zip(model.names, marginals, strict=True)),
        )
        for chosen, marginals in zip(output.labels.tolist(), output.marginals.tolist(), strict=True)
    ]
