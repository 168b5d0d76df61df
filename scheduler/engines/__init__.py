"""Making decisions true."""
