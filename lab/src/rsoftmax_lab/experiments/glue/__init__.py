"""Table 2: an encoder fine-tuned on GLUE."""
