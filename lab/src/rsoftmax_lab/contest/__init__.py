"""The multi-label contest of section 4.1, which three experiments hold on different data."""
