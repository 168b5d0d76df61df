"""The pure core: no file, no clock, no chance; events in, decisions out."""
