"""For each subcommand but reproduce, ``NAME_options`` makes its options and ``run_NAME`` does the work.

Only ``run_NAME`` imports modules that load torch or Ray, after the options are validated.
"""
