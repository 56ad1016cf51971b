"""Label models: from texts, images or table rows to labels, saved as one folder."""
