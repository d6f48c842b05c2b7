"""One module per subcommand: ``read`` makes its options from a command line, ``run`` does the work.

Only ``run`` imports modules that load torch or Ray, after the options are validated.
"""
