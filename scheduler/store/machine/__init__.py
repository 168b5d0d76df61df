"""Files that all schedulers of a machine share: leases, wait tickets, device reservations, the site's rules.

Other users may have written anything into these files, so their content is not trusted. Start at `records`, the store
of all these files, then `leases`.
"""
