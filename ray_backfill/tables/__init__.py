"""The row types of every table and journal entry. Writers, readers, reports and docs take the columns from here."""
