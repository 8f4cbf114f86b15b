"""Text -> objects: YAML and JSON, what each kind may say, what is wrong with it, and what is kept when it is."""
