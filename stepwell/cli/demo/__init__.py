"""A researcher, a writer and their manager at work: `stepwell demo`. Offline, and alive again after any kill."""
