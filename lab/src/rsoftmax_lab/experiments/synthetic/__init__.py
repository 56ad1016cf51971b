"""Figure 2: synthetic documents."""
