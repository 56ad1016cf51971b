"""What the library costs, beside torch in the same run."""
