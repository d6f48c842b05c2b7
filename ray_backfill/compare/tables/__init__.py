"""The row types of the tables in RUN/results."""
