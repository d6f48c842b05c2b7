"""Row types of every table, and the journal entries. Writers, readers, reports and docs use their columns."""
