"""What memory exists and who holds it."""
