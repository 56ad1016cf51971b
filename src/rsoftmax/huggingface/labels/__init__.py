"""Labels for texts and images: an encoder with a multi-label head."""
