"""Serve a text model saved by `rsoftmax train` over HTTP: labels, and the marginals of all labels.

    pip install fastapi uvicorn 'rsoftmax[labels]'
    MODEL=my-model uvicorn labels_by_http:app
    curl 127.0.0.1:8000/predict --json '{"texts": ["what a lovely day"]}'

For rows of numbers, use `rsoftmax.labels.TableModel.load` and `list[list[float]]` instead.
"""

import os
from collections.abc import Awaitable, Callable

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from rsoftmax.labels import LabelModel

MAX_BYTES, MAX_TEXTS = 1 << 17, 32  # of a request: the time to read it grows with the length of its texts
model = LabelModel.load(os.environ["MODEL"])
app = FastAPI(title="Text labels")


class Question(BaseModel):
    texts: list[str] = Field(max_length=MAX_TEXTS)


class Answer(BaseModel):
    labels: list[str]
    marginals: dict[str, float]
    truncated: bool


@app.middleware("http")
async def limit_size(request: Request, proceed: Callable[[Request], Awaitable[Response]]) -> Response:
    """Answer 413 before a large body is read; without its size in the header, 411."""
    if "transfer-encoding" in request.headers:
        return JSONResponse({"detail": "the request needs the header Content-Length"}, 411)
    if int(request.headers.get("content-length", 0)) > MAX_BYTES:
        return JSONResponse({"detail": f"a request may have {MAX_BYTES} bytes; send fewer texts at a time"}, 413)
    return await proceed(request)


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
        output, truncated = model.outputs(question.texts), model.truncated(question.texts)
    except ValueError as error:
        raise HTTPException(422, str(error)) from None
    return [
        Answer(
            labels=[name for name, yes in zip(model.names, chosen, strict=True) if yes],
            marginals=dict(zip(model.names, marginals, strict=True)),
            truncated=index in truncated,
        )
        for index, (chosen, marginals) in enumerate(zip(output.labels.tolist(), output.marginals.tolist(), strict=True))
    ]
