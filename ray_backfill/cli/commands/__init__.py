"""One module per subcommand: ``options`` makes its options, ``run`` does the work. That of reproduce is in a checkout.

Only ``run`` imports modules that load torch or Ray, after the options are validated.
"""
