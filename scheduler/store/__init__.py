"""What survives a crash: it stores, it does not interpret."""
