"""Who may use the page, and that what is asked of it comes from the page itself."""
