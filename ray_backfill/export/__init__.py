"""export: what a service needs of a finished comparison, as files that need no package of ours."""
