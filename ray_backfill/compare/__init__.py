"""What is compared: resolved and checked once, replayed, and made into tables."""
