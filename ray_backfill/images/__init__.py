"""Images: sources, data sets, and which classes each model learns."""
