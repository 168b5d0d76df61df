"""Files that all schedulers of a machine share: leases, wait tickets, device reservations, the site's rules.

Everything that is read here may have been written by other users, and is not trusted. Start at `records`, the store of
all these files, then `leases`.
"""
