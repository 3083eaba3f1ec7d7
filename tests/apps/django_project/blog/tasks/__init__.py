"""The tasks of the blog: workers import all modules of a package `tasks`."""
