"""One module a subcommand: ``read`` makes its options from a command line, ``run`` does the work.

Only ``run`` imports what loads torch or Ray, after the options were found to be right.
"""
