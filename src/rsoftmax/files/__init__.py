"""Files: tables to read, folders of saved models, model cards, images, ONNX."""
