"""The one place that joins concrete classes, according to Settings: `running` and `reading`."""
