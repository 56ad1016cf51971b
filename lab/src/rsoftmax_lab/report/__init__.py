"""The report: tables and figures of the results next to the paper's numbers, in Markdown and HTML."""
