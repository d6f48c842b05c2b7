"""The published papers beside what comes out here: experiments of several seeds, their tables, every claim."""
