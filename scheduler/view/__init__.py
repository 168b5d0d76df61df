"""What people and programs see; it is fed, it reads nothing by itself."""
