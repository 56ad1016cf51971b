"""Tables and figures of the results, the paper's numbers beside ours: a report in Markdown and in HTML."""
