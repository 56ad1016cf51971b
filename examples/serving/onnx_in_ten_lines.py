"""Run a text model exported by `rsoftmax export my-model --onnx labels.onnx`, without torch and without rsoftmax.

pip install onnxruntime tokenizers
python onnx_in_ten_lines.py labels.onnx my-model "what a lovely day" "leave me alone"
"""

import json
import sys

import onnxruntime
from tokenizers import Tokenizer

file, folder, *texts = sys.argv[1:]
session = onnxruntime.InferenceSession(file)
about = {name: json.loads(value) for name, value in session.get_modelmeta().custom_metadata_map.items()}
tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
tokenizer.enable_truncation(about["max_tokens"])
tokenizer.enable_padding()
tokens = tokenizer.encode_batch(texts)
given = {"input_ids": [one.ids for one in tokens], "attention_mask": [one.attention_mask for one in tokens]}
for text, marginals, chosen in zip(texts, *session.run(["marginals", "labels"], given), strict=True):
    answer = zip(about["labels"], marginals, chosen, strict=True)
    print(text, {name: round(float(marginal), 3) for name, marginal, yes in answer if yes})
