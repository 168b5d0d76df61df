"""The import package of an older tool, on gpu-batch-scheduler."""
