"""The atlas: pretrained models on public collections, every pair an upgrade, and how much each rule of choice loses.

``collections`` says what is searched, ``models`` what embeds it, ``embeddings`` embeds each collection once with each
model and joins any two models' columns to a folder.
"""
