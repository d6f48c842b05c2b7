"""Embeds a user's own texts or images with models as they are: no training, no new layer.

- ``spec`` reads the words that name a model, such as ``sentence-transformers:all-MiniLM-L6-v2#batch=64``;
- ``models`` has one file for each kind of model, and loads it;
- ``items`` reads what is to be embedded, and writes it in parts;
- ``stage`` embeds the parts into a folder of the data contract; ``ray`` is its actor.
"""
