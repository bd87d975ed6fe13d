"""The database, the journal and the domain types. Nobody else opens them; this room imports neither of the others."""
