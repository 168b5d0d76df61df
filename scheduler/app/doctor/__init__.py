"""The examination of this machine for `scheduler doctor`.

How the findings look on the screen is decided in `ui/doctor`. Start at `probe`.
"""
