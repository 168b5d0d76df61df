"""Outside languages turned into Specs."""
