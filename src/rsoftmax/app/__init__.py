"""A local page to explore mappings, labels and attention: ``rsoftmax app``. Needs ``pip install 'rsoftmax[app]'``.

No data leaves the machine: Gradio's analytics are off, and fonts and scripts are served locally.
"""

import os

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read by Gradio when it is imported
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

try:
    import gradio  # noqa: F401
except ImportError as missing:
    raise ImportError(f"rsoftmax.app needs {missing.name}: pip install 'rsoftmax[app]'") from missing

from rsoftmax.app.page import page, serve

__all__ = ["page", "serve"]
